-- workers that have been silent for long and hold nothing.
DELETE FROM worker
 WHERE (boot <> :boot OR beat_at < :now - :silent_ms)
   AND NOT EXISTS (SELECT 1 FROM item WHERE item.phase = 'active' AND item.worker = worker.id)
