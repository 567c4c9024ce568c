-- forget: the history of items settled before that time, but for their last event.
DELETE FROM event
 WHERE seq IN (
   SELECT e.seq FROM event AS e JOIN item AS i ON i.id = e.item
    WHERE i.phase IN ('done', 'failed', 'cancelled') AND i.updated_at < :before AND e.n < i.version
    ORDER BY e.seq LIMIT :most)
RETURNING 1
