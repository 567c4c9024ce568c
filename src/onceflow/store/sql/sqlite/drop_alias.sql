-- what was an alias of an item is its key now.
DELETE FROM alias WHERE pipeline = :pipeline AND key = :key AND item = :item
