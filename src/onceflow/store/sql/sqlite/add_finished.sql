-- of items: those that have done all, as an operator would see them.
SELECT item.id, item.version, item.key
  FROM json_each(:ids) AS k CROSS JOIN item
 WHERE item.id = k.value AND item.phase = 'done'
