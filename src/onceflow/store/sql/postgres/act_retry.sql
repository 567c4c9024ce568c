-- retry: done, failed, cancelled -> (stage, ready), as a new generation; or (stage, waiting) -> ready now.
WITH target AS MATERIALIZED (
  SELECT * FROM unnest(CAST(:items AS bigint[]), CAST(:versions AS bigint[]), CAST(:lanes AS text[]))
         AS t (item, version, lane)),
clock AS MATERIALIZED (SELECT clock_ms(:now) AS now),
picked AS MATERIALIZED (
  SELECT i.id, t.lane FROM target AS t JOIN item AS i ON i.id = t.item
   WHERE i.version = t.version AND (i.phase IN ('done', 'failed', 'cancelled')
          OR i.phase = 'waiting' AND i.due_at IS NOT NULL AND CAST(:stage AS text) = '')
   ORDER BY i.id FOR UPDATE OF i),
changed AS (
  UPDATE item
     SET phase = 'ready', stage = CASE WHEN CAST(:stage AS text) = '' THEN item.stage ELSE :stage END,
         lane = p.lane, generation = generation + CASE WHEN phase = 'waiting' THEN 0 ELSE 1 END,
         attempt = 0, deaths = 0, fence = fence + 1, version = item.version + 1, due_at = NULL, error = NULL,
         error_code = NULL, updated_at = c.now
    FROM picked AS p CROSS JOIN clock AS c
   WHERE item.id = p.id
  RETURNING item.id, item.version, item.run, item.stage, item.phase, item.generation, item.fence,
            item.attempt, c.now),
logged AS (
  INSERT INTO event (at, kind, item, n, run, stage, phase, generation, fence, attempt, data)
  SELECT now, :kind, id, version, run, stage, phase, generation, fence, attempt, :data FROM changed ORDER BY id)
SELECT id FROM changed ORDER BY id
