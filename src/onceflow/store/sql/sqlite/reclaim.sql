-- reclaim: (stage, active) -> (stage, ready), or (stage, waiting), or failed as poison. A lease is over when its
-- worker is gone, was booted away, is silent for a lease, or past its deadline. Whose fault it is:
-- `unbegun`: its handler has done nothing, the attempt is given back. `beside`: several ran when their worker died,
-- and nobody knows which of them ended it: given back, but the death is counted, and after some of them it is claimed
-- to run alone. Who ran alone, or hung while its worker lives, has used the attempt. Who has one attempt left waits a
-- little for it.
WITH over AS MATERIALIZED (
  SELECT i.id, i.attempt, i.begun, t.attempts, t.lease_ms,
         w.id IS NULL OR w.boot <> :boot OR :now - w.beat_at > t.lease_ms AS gone
    FROM item AS i
    JOIN stage AS t ON t.pipeline = i.pipeline AND t.stage = i.stage
    LEFT JOIN worker AS w ON w.id = i.worker
   WHERE i.phase = 'active'
     AND (w.id IS NULL OR w.boot <> :boot OR :now - w.beat_at > t.lease_ms OR i.deadline < :now)
   LIMIT :most),
fate AS MATERIALIZED (
  SELECT id, attempt, attempts, lease_ms, begun > 1 AND gone AS beside,
         begun > 0 AND NOT (begun > 1 AND gone) AS counts
    FROM over)
UPDATE item
   SET phase = CASE WHEN counts AND fate.attempt >= attempts THEN 'failed'
                    WHEN counts AND fate.attempt + 1 = attempts THEN 'waiting' ELSE 'ready' END,
       due_at = CASE WHEN counts AND fate.attempt + 1 = attempts
                     THEN :now + min(lease_ms, :apart_ms) * (1000 + item.id * 7919 % 9000) / 10000 END,
       attempt = CASE WHEN counts THEN item.attempt ELSE max(item.attempt - 1, 0) END,
       deaths = deaths + beside,
       error = CASE WHEN counts AND fate.attempt >= attempts
                    THEN 'its worker died or hung in each of ' || fate.attempt || ' attempts' ELSE error END,
       error_code = CASE WHEN counts AND fate.attempt >= attempts THEN 'poison' ELSE error_code END,
       fence = fence + 1, version = version + 1,
       worker = NULL, deadline = NULL, claimed_at = NULL, updated_at = :now
  FROM fate
 WHERE item.id = fate.id AND item.phase = 'active'
RETURNING item.id, item.version, item.run, item.stage, item.phase, item.generation, item.fence,
          item.attempt, item.error
