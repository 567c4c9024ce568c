-- every result of an item, oldest first.
SELECT stage, generation, at, body FROM result WHERE item = :item ORDER BY at, generation, stage
