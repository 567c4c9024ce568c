-- workers that have been silent for long and hold nothing.
DELETE FROM worker
 WHERE id IN (
   SELECT w.id FROM worker AS w
    WHERE w.beat_at < clock_ms(:now) - CAST(:silent_ms AS bigint)
      AND NOT EXISTS (SELECT 1 FROM item AS i WHERE i.phase = 'active' AND i.worker = w.id)
      FOR UPDATE OF w SKIP LOCKED)
