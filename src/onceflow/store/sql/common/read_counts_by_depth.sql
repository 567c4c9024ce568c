-- how many items of a pipeline there are at each (stage, phase) and depth.
SELECT stage, phase, depth, count(*) AS items
  FROM item WHERE pipeline = :pipeline GROUP BY stage, phase, depth ORDER BY stage, phase, depth
