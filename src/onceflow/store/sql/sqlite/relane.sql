-- ready items get the lanes that their stages have now.
UPDATE item SET lane = r.value ->> 1
  FROM json_each(:rows) AS r
 WHERE item.id = r.value ->> 0 AND item.stage = r.value ->> 2 AND item.phase = 'ready'
