-- gates open: once each, and only while every item of the sealed run is settled. Nothing -> (gate stage, ready):
-- one item of a run, whose key nobody else may use.
WITH clock AS MATERIALIZED (SELECT clock_ms(:now) AS now),
due AS MATERIALIZED (
  SELECT r.id FROM run AS r
   WHERE r.id = ANY(CAST(:runs AS text[])) AND r.sealed = 1 AND r.settled_at IS NULL
   ORDER BY r.id FOR UPDATE SKIP LOCKED),
open AS MATERIALIZED (  -- everything that is not settled; mostly that is less than what a run has. ORDER BY: by index
  (SELECT id FROM item WHERE phase = 'active' ORDER BY pipeline LIMIT :few)
  UNION ALL (SELECT id FROM item WHERE phase = 'ready' ORDER BY pipeline LIMIT :few)
  UNION ALL (SELECT id FROM item WHERE phase = 'waiting' ORDER BY due_at LIMIT :few)),
opened AS (
  UPDATE run
     SET settled_at = c.now, witness = 0,
         gate_item = CASE WHEN gate_stage IS NOT NULL THEN nextval(pg_get_serial_sequence('item', 'id')) END
    FROM due CROSS JOIN clock AS c
   WHERE run.id = due.id AND run.sealed = 1 AND run.settled_at IS NULL
     AND CASE WHEN run.gate = 'completed' OR (SELECT count(*) FROM open) >= :few THEN NOT EXISTS (
                SELECT 1 FROM member AS m JOIN item AS i ON i.id = m.item
                 WHERE m.run = run.id
                   AND (i.phase IN ('waiting', 'ready', 'active') OR run.gate = 'completed' AND i.phase <> 'done'))
              ELSE NOT EXISTS (  -- each of them by itself, never by way of all members
                SELECT 1 FROM open WHERE (SELECT true FROM member AS m WHERE m.run = run.id AND m.item = open.id)) END
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
  SELECT created_at, 'gate_opened', id, 1, run, stage, 'ready', 1, 0, 0
    FROM made CROSS JOIN hold_history() AS held (seq) ORDER BY id)
SELECT id, gate_stage FROM opened ORDER BY id
