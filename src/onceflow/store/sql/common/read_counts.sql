-- how many items there are at each (stage, phase), and since when the oldest is there.
SELECT pipeline, stage, phase, count(*) AS items, min(updated_at) AS oldest_at
  FROM item
 WHERE CAST(:pipeline AS text) IS NULL OR pipeline = :pipeline
 GROUP BY pipeline, stage, phase ORDER BY pipeline, stage, phase
