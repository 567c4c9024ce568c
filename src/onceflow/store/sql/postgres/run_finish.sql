-- runs are over: settled, and what their gates added is settled too.
WITH clock AS MATERIALIZED (SELECT clock_ms(:now) AS now),
due AS MATERIALIZED (
  SELECT r.id FROM run AS r
   WHERE r.id = ANY(CAST(:runs AS text[])) AND r.settled_at IS NOT NULL AND r.finished_at IS NULL
     AND (r.gate_stage IS NULL
          OR (SELECT i.phase FROM item AS i WHERE i.id = r.gate_item) IN ('done', 'failed', 'cancelled'))
   ORDER BY r.id FOR UPDATE OF r SKIP LOCKED),
ended AS (
  UPDATE run SET finished_at = c.now
    FROM due CROSS JOIN clock AS c
   WHERE run.id = due.id
  RETURNING run.id, run.pipeline, c.now),
logged AS (
  INSERT INTO event (at, kind, pipeline, run)
  SELECT now, 'run_finished', pipeline, id FROM ended CROSS JOIN hold_history() AS held (seq) ORDER BY id)
SELECT id FROM ended
