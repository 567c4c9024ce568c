-- how many items of one run there are at each (stage, phase) and depth in it.
SELECT i.stage, i.phase, m.depth, count(*) AS items
  FROM member AS m JOIN item AS i ON i.id = m.item
 WHERE m.run = :run
 GROUP BY i.stage, i.phase, m.depth ORDER BY i.stage, i.phase, m.depth
