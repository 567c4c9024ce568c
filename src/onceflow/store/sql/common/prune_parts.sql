-- forget: pieces of work of items that were given up before that time.
DELETE FROM part
 WHERE EXISTS (SELECT 1 FROM item AS i
                WHERE i.id = part.item AND i.phase IN ('failed', 'cancelled') AND i.updated_at < :before)
