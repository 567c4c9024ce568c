-- promote: (stage, waiting) -> (stage, ready), when it is due. A bounded number at a time; says what is left.
WITH clock AS MATERIALIZED (SELECT clock_ms(:now) AS now),
due AS MATERIALIZED (
  SELECT i.id FROM item AS i
   WHERE i.phase = 'waiting' AND i.due_at IS NOT NULL AND i.due_at <= (SELECT clock.now FROM clock)
   ORDER BY i.due_at LIMIT :most FOR UPDATE SKIP LOCKED),
promoted AS (
  UPDATE item SET phase = 'ready', due_at = NULL, updated_at = c.now
    FROM due CROSS JOIN clock AS c
   WHERE item.id = due.id
  RETURNING item.id)
SELECT (SELECT count(*) FROM promoted) AS promoted,
       (SELECT i.due_at FROM item AS i
         WHERE i.phase = 'waiting' AND i.due_at IS NOT NULL
         ORDER BY i.due_at LIMIT 1 OFFSET (SELECT count(*) FROM due)) - (SELECT clock.now FROM clock) AS due_in_ms
