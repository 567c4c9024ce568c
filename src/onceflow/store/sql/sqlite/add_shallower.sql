-- a shorter way to known items was found: their depth is the shortest one of all their runs.
UPDATE item SET depth = n.value ->> 1
  FROM json_each(:nearer) AS n
 WHERE item.id = n.value ->> 0 AND item.depth > n.value ->> 1
