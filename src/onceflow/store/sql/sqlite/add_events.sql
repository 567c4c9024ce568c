-- add, its history: every new item begins with one event.
INSERT INTO event (at, kind, item, n, run, stage, phase, generation, fence, attempt)
SELECT :now, :kind, i.id, 1, i.run, i.stage, i.phase, i.generation, i.fence, i.attempt
  FROM json_each(:keys) AS k CROSS JOIN item AS i  -- CROSS: the keys lead, each finds its item
 WHERE i.pipeline = :pipeline AND i.key = k.value
