-- what still has to move by itself: not what is held, nor what belongs to a run that is halted.
SELECT i.id, i.key, i.stage, i.phase, i.worker, i.updated_at, i.due_at
  FROM item AS i
 WHERE i.phase = 'active' OR i.phase = 'waiting' AND i.due_at IS NOT NULL
    OR i.phase = 'ready' AND NOT EXISTS (SELECT 1 FROM run WHERE run.id = i.run AND run.halted IS NOT NULL)
