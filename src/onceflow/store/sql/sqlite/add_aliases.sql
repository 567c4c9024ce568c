-- other keys of items; a key that is an item of its own, or an alias already, stays that.
INSERT INTO alias (pipeline, key, item)
SELECT a.value ->> 0, a.value ->> 1, a.value ->> 2 FROM json_each(:rows) AS a
 WHERE NOT EXISTS (SELECT 1 FROM item WHERE item.pipeline = a.value ->> 0 AND item.key = a.value ->> 1)
ON CONFLICT DO NOTHING
