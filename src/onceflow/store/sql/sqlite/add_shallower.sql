-- a shorter way to a known item was found: its depth is the shortest one.
UPDATE item SET depth = :depth WHERE id IN (SELECT value FROM json_each(:ids)) AND depth > :depth
