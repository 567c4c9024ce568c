-- reclaim: (stage, active) -> (stage, ready), or failed when its attempts are used up. One whose last attempt
-- is next -> (stage, waiting): each a while apart, so that it is not run beside the one that ends its worker.
-- A lease is over when its worker is gone or silent for a lease, or when it is past its deadline. What was
-- seen is checked again on the locked row: a newer fence or a moved deadline is somebody else's lease.
WITH clock AS MATERIALIZED (SELECT clock_ms(:now) AS now),
over AS MATERIALIZED (
  SELECT i.id, i.fence, s.attempts, s.lease_ms, w.id IS NULL OR c.now - w.beat_at > s.lease_ms AS dead
    FROM item AS i
    JOIN stage AS s ON s.pipeline = i.pipeline AND s.stage = i.stage
    LEFT JOIN worker AS w ON w.id = i.worker
   CROSS JOIN clock AS c
   WHERE i.phase = 'active'
     AND (w.id IS NULL OR c.now - w.beat_at > s.lease_ms OR i.deadline < c.now)
   LIMIT :most),
picked AS MATERIALIZED (
  SELECT i.id, over.attempts, over.lease_ms
    FROM over JOIN item AS i ON i.id = over.id CROSS JOIN clock AS c
   WHERE i.phase || '' = 'active'  -- || '': by the ids, not once more by way of all active ones
     AND i.fence = over.fence AND (over.dead OR i.deadline < c.now)
     FOR UPDATE OF i SKIP LOCKED),
taken AS (
  UPDATE item
     SET phase = CASE WHEN attempt >= p.attempts THEN 'failed'
                      WHEN attempt + 1 = p.attempts THEN 'waiting' ELSE 'ready' END,
         due_at = CASE WHEN attempt + 1 = p.attempts
                       THEN c.now + least(p.lease_ms, :apart_ms) * (1000 + item.id * 7919 % 9000) / 10000 END,
         error = CASE WHEN attempt >= p.attempts
                      THEN 'its worker died or hung in each of ' || attempt || ' attempts'
                      ELSE error END,
         error_code = CASE WHEN attempt >= p.attempts THEN 'poison' ELSE error_code END,
         fence = fence + 1, version = version + 1,
         worker = NULL, deadline = NULL, claimed_at = NULL, updated_at = c.now
    FROM picked AS p CROSS JOIN clock AS c
   WHERE item.id = p.id
  RETURNING item.id, item.version, item.run, item.stage, item.phase, item.generation, item.fence,
            item.attempt, item.error, c.now),
logged AS (
  INSERT INTO event (at, kind, item, n, run, stage, phase, generation, fence, attempt, data)
  SELECT now, CASE WHEN phase = 'failed' THEN 'failed' ELSE 'reclaimed' END, id, version, run, stage, phase,
         generation, fence, attempt,
         CASE WHEN phase = 'failed' THEN CAST(json_build_object('error', error, 'code', 'poison') AS text) END
    FROM taken ORDER BY id)
SELECT count(*) AS reclaimed FROM taken
