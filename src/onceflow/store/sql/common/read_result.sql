-- the newest result of an item's stage.
SELECT generation, at, body FROM result
 WHERE item = :item AND stage = :stage ORDER BY generation DESC LIMIT 1
