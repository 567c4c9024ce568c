-- finish, the rest of its history: attempts that stored more than one event. Their items have moved on already,
-- in this transaction.
INSERT INTO event (at, kind, item, n, run, stage, next_stage, phase, generation, fence, attempt, worker, ms, data)
SELECT c.now, e.kind, i.id, i.version - e.events + e.number, i.run, e.stage, nullif(i.stage, e.stage), i.phase,
       i.generation, i.fence, e.used, :worker, c.now - e.claimed_at, e.data
  FROM unnest(CAST(:items AS bigint[]), CAST(:events AS bigint[]), CAST(:numbers AS bigint[]),
              CAST(:kinds AS text[]), CAST(:datas AS text[]), CAST(:stages AS text[]), CAST(:used AS bigint[]),
              CAST(:claimed AS bigint[]))
       AS e (item, events, number, kind, data, stage, used, claimed_at)
  JOIN item AS i ON i.id = e.item
 CROSS JOIN (SELECT clock_ms(:now) AS now) AS c
