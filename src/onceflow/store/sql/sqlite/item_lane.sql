-- the lane of one item.
SELECT lane FROM item WHERE id = :item
