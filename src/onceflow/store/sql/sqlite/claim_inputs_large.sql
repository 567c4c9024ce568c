-- claim, what the attempts work on: the compressed ones, row by row.
SELECT item, generation, body
  FROM result
 WHERE item IN (SELECT value FROM json_each(:ids)) AND stage = :before AND substr(body, 1, 1) IN (x'78', x'28')
