-- release: (stage, active) -> (stage, ready), by an operator. It costs no attempt; the worker loses its lease.
WITH target AS MATERIALIZED (
  SELECT * FROM unnest(CAST(:items AS bigint[]), CAST(:versions AS bigint[]), CAST(:lanes AS text[]))
         AS t (item, version, lane)),
clock AS MATERIALIZED (SELECT clock_ms(:now) AS now),
picked AS MATERIALIZED (
  SELECT i.id, t.lane FROM target AS t JOIN item AS i ON i.id = t.item
   WHERE i.version = t.version AND i.phase = 'active'
   ORDER BY i.id FOR UPDATE OF i),
changed AS (
  UPDATE item
     SET phase = 'ready', fence = fence + 1, version = item.version + 1, attempt = greatest(attempt - 1, 0),
         worker = NULL, deadline = NULL, claimed_at = NULL, updated_at = c.now
    FROM picked AS p CROSS JOIN clock AS c
   WHERE item.id = p.id
  RETURNING item.id, item.version, item.run, item.stage, item.phase, item.generation, item.fence,
            item.attempt, c.now),
logged AS (
  INSERT INTO event (at, kind, item, n, run, stage, phase, generation, fence, attempt, data)
  SELECT now, :kind, id, version, run, stage, phase, generation, fence, attempt, :data FROM changed ORDER BY id)
SELECT id FROM changed ORDER BY id
