-- whether a key is another item's, as its own or as an alias.
SELECT EXISTS (SELECT 1 FROM item WHERE pipeline = :pipeline AND key = :key AND id <> :item)
    OR EXISTS (SELECT 1 FROM alias WHERE pipeline = :pipeline AND key = :key AND item <> :item)
