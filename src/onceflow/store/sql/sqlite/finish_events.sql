-- finish, its history: written first, while the items still say who held them and since when.
INSERT INTO event (at, kind, item, n, run, stage, next_stage, phase, generation, fence, attempt,
                   worker, ms, data)
SELECT :now, :kind, item.id, item.version + :at, item.run, item.stage, :next_stage, :phase,
       item.generation, item.fence, item.attempt, :worker, :now - item.claimed_at, :data
  FROM json_each(:held) AS h CROSS JOIN item
 WHERE item.id = h.value ->> 0
   AND (item.fence, item.ticket) = (h.value ->> 1, h.value ->> 2)
   AND item.stage = :from_stage AND item.phase = 'active'
