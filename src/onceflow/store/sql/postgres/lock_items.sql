-- items that a transaction will need are locked in the order of their ids, so that nobody waits in a circle.
SELECT id FROM item WHERE id = ANY(CAST(:ids AS bigint[])) ORDER BY id FOR UPDATE
