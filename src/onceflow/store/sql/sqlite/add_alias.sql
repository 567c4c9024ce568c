-- another key of an item; a key that is an item of its own, or an alias already, stays that.
INSERT INTO alias (pipeline, key, item)
SELECT :pipeline, :key, :item
 WHERE NOT EXISTS (SELECT 1 FROM item WHERE pipeline = :pipeline AND key = :key)
ON CONFLICT DO NOTHING
