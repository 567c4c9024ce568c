-- the other keys of items: those that are no item's own.
SELECT a.* FROM alias AS a WHERE NOT EXISTS (SELECT 1 FROM item AS i WHERE i.pipeline = a.pipeline AND i.key = a.key)
