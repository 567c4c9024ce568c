-- the run knows the item its gate added.
UPDATE run SET gate_item = :item WHERE id = :run AND gate_item IS NULL
