-- the leases that a worker has on some items, each with its input: the newest result of the stage before, which
-- `befores` names for each stage.
SELECT i.id, i.pipeline, i.key, i.stage, i.fence, i.attempt, i.generation, i.run, i.depth, i.claimed_at,
       (SELECT r.body FROM result AS r
         WHERE r.item = i.id AND r.stage = b.value ->> 2 ORDER BY r.generation DESC LIMIT 1) AS data,
       i.ticket, i.deaths >= :deaths_max AS alone
  FROM json_each(:items) AS k CROSS JOIN item AS i  -- CROSS: the list leads, each finds its item
  LEFT JOIN json_each(:befores) AS b ON b.value ->> 0 = i.pipeline AND b.value ->> 1 = i.stage
 WHERE i.id = k.value AND i.phase = 'active' AND i.worker = :worker
 ORDER BY i.id
