-- ready items in a lane of a stage that has no lanes, or in none of a stage that has some: a program with
-- another table put them there. No claim would find them.
SELECT * FROM (
  SELECT i.id, i.pipeline, i.stage, i.key, i.lane
    FROM stage AS s JOIN item AS i ON i.pipeline = s.pipeline AND i.stage = s.stage
   WHERE s.lane_limit IS NULL AND i.phase = 'ready' AND i.lane > ''
     AND replace(:pipelines, ' ' || s.pipeline || ' ', '') <> :pipelines
  UNION ALL
  SELECT i.id, i.pipeline, i.stage, i.key, i.lane
    FROM stage AS s JOIN item AS i ON i.pipeline = s.pipeline AND i.stage = s.stage
   WHERE s.lane_limit IS NOT NULL AND i.phase = 'ready' AND i.lane = ''
     AND replace(:pipelines, ' ' || s.pipeline || ' ', '') <> :pipelines) AS found
LIMIT :most
