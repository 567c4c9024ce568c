-- the ids of these keys.
SELECT json_group_array(json_array(i.key, i.id))
  FROM json_each(:keys) AS k CROSS JOIN item AS i  -- CROSS: the keys lead, each finds its item
 WHERE i.pipeline = :pipeline AND i.key = k.value
