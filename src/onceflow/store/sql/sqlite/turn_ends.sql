-- the first and the last run that have something ready in a lane: mostly the same one.
SELECT (SELECT run FROM item
         WHERE pipeline = :pipeline AND stage = :stage AND phase = 'ready' AND lane = :lane
         ORDER BY run LIMIT 1),
       (SELECT run FROM item
         WHERE pipeline = :pipeline AND stage = :stage AND phase = 'ready' AND lane = :lane
         ORDER BY run DESC LIMIT 1),
       EXISTS (SELECT 1 FROM run WHERE halted IS NOT NULL)
