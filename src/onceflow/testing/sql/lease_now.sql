-- who holds an item now.
SELECT phase, fence, worker FROM item WHERE id = :item
