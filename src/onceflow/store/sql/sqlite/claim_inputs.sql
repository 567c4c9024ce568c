-- claim, what the attempts work on: the newest result of the stage before. Short ones in one value.
SELECT json_group_array(json_array(item, generation, CAST(body AS TEXT)))
  FROM result
 WHERE item IN (SELECT value FROM json_each(:ids)) AND stage = :before AND substr(body, 1, 1) NOT IN (x'78', x'28')
