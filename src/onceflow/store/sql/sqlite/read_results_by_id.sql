-- the newest result of one stage of each of these items, a JSON array of ids.
SELECT r.item, r.generation, r.at, r.body
  FROM json_each(:ids) AS w JOIN result AS r ON r.item = w.value
 WHERE r.stage = :stage
   AND r.generation = (SELECT max(n.generation) FROM result AS n WHERE n.item = r.item AND n.stage = r.stage)
 ORDER BY r.item
