-- how many items of one run there are at each (stage, phase).
SELECT i.pipeline, i.stage, i.phase, count(*) AS items, min(i.updated_at) AS oldest_at
  FROM member AS m JOIN item AS i ON i.id = m.item
 WHERE m.run = :run
 GROUP BY i.pipeline, i.stage, i.phase ORDER BY i.pipeline, i.stage, i.phase
