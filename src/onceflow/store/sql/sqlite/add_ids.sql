-- the ids of these keys.
SELECT json_group_array(json_array(key, id))
  FROM (SELECT item.key, item.id FROM item JOIN json_each(:keys) AS k
          ON item.pipeline = :pipeline AND item.key = k.value)
