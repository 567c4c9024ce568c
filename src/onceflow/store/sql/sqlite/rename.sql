-- an item gets the key that is its own.
UPDATE item SET key = :key WHERE id = :item
