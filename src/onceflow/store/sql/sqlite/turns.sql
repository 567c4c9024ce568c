-- the runs that have something ready in a lane, one index step each, without those that are halted.
WITH RECURSIVE turn (run) AS (
  SELECT (SELECT run FROM item
           WHERE pipeline = :pipeline AND stage = :stage AND phase = 'ready' AND lane = :lane
           ORDER BY run LIMIT 1)
  UNION ALL
  SELECT (SELECT run FROM item
           WHERE pipeline = :pipeline AND stage = :stage AND phase = 'ready' AND lane = :lane
             AND run > turn.run
           ORDER BY run LIMIT 1)
    FROM turn WHERE turn.run IS NOT NULL)
SELECT json_group_array(run) FROM (
  SELECT turn.run FROM turn JOIN run ON run.id = turn.run WHERE run.halted IS NULL LIMIT :most)
