-- claim, what the attempts work on: the newest result of the stage before. The first row has all short ones in
-- one value; the compressed ones follow, row by row.
SELECT NULL, NULL, json_group_array(json_array(item, generation, CAST(body AS TEXT)))
  FROM result
 WHERE item IN (SELECT value FROM json_each(:ids)) AND stage = :before AND substr(body, 1, 1) NOT IN (x'78', x'28')
UNION ALL
SELECT item, generation, body
  FROM result
 WHERE item IN (SELECT value FROM json_each(:ids)) AND stage = :before AND substr(body, 1, 1) IN (x'78', x'28')
