-- workers that have been silent for long and hold nothing.
DELETE FROM worker
 WHERE id IN (
   SELECT w.id FROM worker AS w
    WHERE w.beat_at < clock_ms(:now) - CAST(:silent_ms AS bigint)
      AND (SELECT true FROM item AS i WHERE i.phase = 'active' AND i.worker = w.id LIMIT 1) IS NULL
      FOR UPDATE OF w SKIP LOCKED)
