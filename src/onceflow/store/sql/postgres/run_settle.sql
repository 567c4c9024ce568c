-- gates open: once each, and only while every item of the sealed run is settled. Nothing -> (gate stage, ready):
-- one item of a run, whose key nobody else may use.
WITH clock AS MATERIALIZED (SELECT clock_ms(:now) AS now),
due AS MATERIALIZED (
  SELECT r.id FROM run AS r
   WHERE r.id = ANY(CAST(:runs AS text[])) AND r.sealed = 1 AND r.settled_at IS NULL
   ORDER BY r.id FOR UPDATE SKIP LOCKED),
opened AS (
  UPDATE run
     SET settled_at = c.now, witness = 0,
         gate_item = CASE WHEN gate_stage IS NOT NULL THEN nextval(pg_get_serial_sequence('item', 'id')) END
    FROM due CROSS JOIN clock AS c
   WHERE run.id = due.id AND run.sealed = 1 AND run.settled_at IS NULL
     AND NOT EXISTS (
       SELECT 1 FROM member AS m JOIN item AS i ON i.id = m.item
        WHERE m.run = run.id
          AND (i.phase IN ('waiting', 'ready', 'active') OR run.gate = 'completed' AND i.phase <> 'done'))
  RETURNING run.id, run.pipeline, run.gate_stage, run.gate_item, c.now),
keyed AS (
  INSERT INTO alias (pipeline, short_key, item)
  SELECT pipeline, shorten(CAST(:gate_key AS text) || id), gate_item FROM opened WHERE gate_stage IS NOT NULL
  ON CONFLICT (pipeline, short_key) DO NOTHING
  RETURNING item),
made AS (
  INSERT INTO item (id, pipeline, key, stage, phase, run, priority, version, created_at, updated_at)
  SELECT gate_item, pipeline, CAST(:gate_key AS text) || id, gate_stage, 'ready', id, 0, 1, now, now
    FROM opened WHERE (gate_item IN (SELECT keyed.item FROM keyed)) IS TRUE
  RETURNING id, run, stage, created_at),
logged AS (
  INSERT INTO event (at, kind, item, n, run, stage, phase, generation, fence, attempt)
  SELECT created_at, 'gate_opened', id, 1, run, stage, 'ready', 1, 0, 0 FROM made ORDER BY id)
SELECT id, gate_stage FROM opened ORDER BY id
