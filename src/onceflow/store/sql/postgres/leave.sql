-- leave: a worker stops. With `release` it does so by itself and in good order: what it holds is ready again, (stage,
-- active) -> (stage, ready), and its attempts are given back. Without, that is left to be reclaimed.
WITH clock AS MATERIALIZED (SELECT clock_ms(:now) AS now),
held AS MATERIALIZED (
  SELECT i.id FROM item AS i
   WHERE i.phase = 'active' AND i.worker = :worker AND CAST(:release AS boolean)
   ORDER BY i.id FOR UPDATE),
released AS (
  UPDATE item
     SET phase = 'ready', fence = fence + 1, version = version + 1, attempt = greatest(attempt - 1, 0),
         worker = NULL, deadline = NULL, claimed_at = NULL, updated_at = c.now
    FROM held CROSS JOIN clock AS c
   WHERE item.id = held.id
  RETURNING item.id, item.version, item.run, item.stage, item.phase, item.generation, item.fence, item.attempt, c.now),
logged AS (
  INSERT INTO event (at, kind, item, n, run, stage, phase, generation, fence, attempt, data)
  SELECT now, 'released', id, version, run, stage, phase, generation, fence, attempt, :data
    FROM released ORDER BY id),
gone AS (DELETE FROM worker WHERE id = :worker)
SELECT count(*) AS released FROM released
