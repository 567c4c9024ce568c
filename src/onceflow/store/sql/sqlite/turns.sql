-- the runs that have something ready in a lane, one index step each, without those that are halted: those after a run,
-- then those from the first one to it.
WITH RECURSIVE ahead (run) AS (
  SELECT (SELECT run FROM item
           WHERE pipeline = :pipeline AND stage = :stage AND phase = 'ready' AND lane = :lane AND run > :after
           ORDER BY run LIMIT 1)
  UNION ALL
  SELECT (SELECT run FROM item
           WHERE pipeline = :pipeline AND stage = :stage AND phase = 'ready' AND lane = :lane
             AND run > ahead.run
           ORDER BY run LIMIT 1)
    FROM ahead WHERE ahead.run IS NOT NULL),
behind (run) AS (
  SELECT (SELECT run FROM item
           WHERE pipeline = :pipeline AND stage = :stage AND phase = 'ready' AND lane = :lane AND :after <> ''
           ORDER BY run LIMIT 1)
  UNION ALL
  SELECT (SELECT run FROM item
           WHERE pipeline = :pipeline AND stage = :stage AND phase = 'ready' AND lane = :lane
             AND run > behind.run
           ORDER BY run LIMIT 1)
    FROM behind WHERE behind.run < :after)
SELECT json_group_array(run) FROM (
  SELECT run FROM (
    SELECT * FROM (SELECT ahead.run, 0 AS part FROM ahead JOIN run ON run.id = ahead.run
                    WHERE run.halted IS NULL LIMIT :most)
    UNION ALL
    SELECT * FROM (SELECT behind.run, 1 FROM behind JOIN run ON run.id = behind.run
                    WHERE run.halted IS NULL AND behind.run <= :after LIMIT :most))
   ORDER BY part, run LIMIT :most)
