-- reclaim: (stage, active) -> (stage, ready), or (stage, waiting), or failed as poison. A lease is over when its worker
-- is gone or silent for a lease, or when it is past its deadline. What was seen is checked again on the locked row: a
-- newer fence or a moved deadline is somebody else's lease. Whose fault it is:
-- A handler that had not begun (`unbegun`) has done nothing: its attempt is given back. Of several that ran when their
-- worker died (`beside`) nobody knows which one ended it: given back, but the death is counted, and after some of them
-- it is claimed to run alone. One that ran alone, or hung while its worker lives, counts. Who has one attempt left
-- waits a little for it.
WITH clock AS MATERIALIZED (SELECT clock_ms(:now) AS now),
over AS MATERIALIZED (
  SELECT i.id, i.fence, i.worker, s.attempts, s.lease_ms, w.id IS NULL OR c.now - w.beat_at > s.lease_ms AS gone
    FROM item AS i
    JOIN stage AS s ON s.pipeline = i.pipeline AND s.stage = i.stage
    LEFT JOIN worker AS w ON w.id = i.worker
   CROSS JOIN clock AS c
   WHERE i.phase = 'active'
     AND (w.id IS NULL OR c.now - w.beat_at > s.lease_ms OR i.deadline < c.now)
   LIMIT :most),
company AS MATERIALIZED (  -- what else had begun there, counted before anything is changed
  SELECT array_agg(b.worker) AS workers
    FROM (SELECT i.worker FROM item AS i
           WHERE i.phase = 'active' AND i.begun > 0 AND i.worker = ANY(ARRAY(SELECT o.worker FROM over AS o WHERE o.gone))
           GROUP BY i.worker HAVING count(*) > 1) AS b),
picked AS MATERIALIZED (
  SELECT i.id, o.attempts, o.lease_ms, i.attempt, i.begun = 0 AS unbegun,
         i.begun > 0 AND o.gone AND (i.begun > 1 OR coalesce(i.worker = ANY(company.workers), false)) AS beside
    FROM over AS o JOIN item AS i ON i.id = o.id CROSS JOIN clock AS c CROSS JOIN company
   WHERE i.phase || '' = 'active'  -- || '': by the ids, not once more by way of all active ones
     AND i.fence = o.fence AND (o.gone OR i.deadline < c.now)
     FOR UPDATE OF i SKIP LOCKED),
judged AS MATERIALIZED (
  SELECT p.*, NOT p.unbegun AND NOT p.beside AND p.attempt >= p.attempts AS poison,
         NOT p.unbegun AND NOT p.beside AND p.attempt + 1 = p.attempts AS waits
    FROM picked AS p),
taken AS (
  UPDATE item
     SET phase = CASE WHEN j.poison THEN 'failed' WHEN j.waits THEN 'waiting' ELSE 'ready' END,
         due_at = CASE WHEN j.waits THEN c.now + least(j.lease_ms, :apart_ms) * (1000 + item.id * 7919 % 9000) / 10000 END,
         attempt = CASE WHEN j.unbegun OR j.beside THEN greatest(item.attempt - 1, 0) ELSE item.attempt END,
         deaths = item.deaths + CASE WHEN j.beside THEN 1 ELSE 0 END,
         error = CASE WHEN j.poison THEN 'its worker died or hung in each of ' || j.attempt || ' attempts' ELSE error END,
         error_code = CASE WHEN j.poison THEN 'poison' ELSE error_code END,
         fence = fence + 1, version = version + 1,
         worker = NULL, deadline = NULL, claimed_at = NULL, updated_at = c.now
    FROM judged AS j CROSS JOIN clock AS c
   WHERE item.id = j.id
  RETURNING item.id, item.version, item.run, item.stage, item.phase, item.generation, item.fence,
            item.attempt, item.error, c.now),
logged AS (
  INSERT INTO event (at, kind, item, n, run, stage, phase, generation, fence, attempt, data)
  SELECT now, CASE WHEN phase = 'failed' THEN 'failed' ELSE 'reclaimed' END, id, version, run, stage, phase,
         generation, fence, attempt,
         CASE WHEN phase = 'failed' THEN CAST(json_build_object('error', error, 'code', 'poison') AS text) END
    FROM taken CROSS JOIN hold_history() AS held (seq) ORDER BY id)
SELECT count(*) AS reclaimed, (SELECT workers FROM company) AS workers FROM taken
