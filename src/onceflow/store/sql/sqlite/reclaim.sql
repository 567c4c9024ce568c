-- reclaim: (stage, active) -> (stage, ready), or failed when its attempts are used up. One whose last attempt
-- is next -> (stage, waiting): each a while apart, so that it is not run beside the one that ends its worker.
-- A lease is over when its worker is gone, was booted away, is silent for a lease, or past its deadline.
UPDATE item
   SET phase = CASE WHEN attempt >= s.attempts THEN 'failed'
                    WHEN attempt + 1 = s.attempts THEN 'waiting' ELSE 'ready' END,
       due_at = CASE WHEN attempt + 1 = s.attempts
                     THEN :now + min(s.lease_ms, :apart_ms) * (1000 + id * 7919 % 9000) / 10000 END,
       error = CASE WHEN attempt >= s.attempts
                    THEN 'its worker died or hung in each of ' || attempt || ' attempts'
                    ELSE error END,
       error_code = CASE WHEN attempt >= s.attempts THEN 'poison' ELSE error_code END,
       fence = fence + 1, version = version + 1,
       worker = NULL, deadline = NULL, claimed_at = NULL, updated_at = :now
  FROM stage AS s
 WHERE s.pipeline = item.pipeline AND s.stage = item.stage AND item.phase = 'active'
   AND item.id IN (
     SELECT i.id
       FROM item AS i
       JOIN stage AS t ON t.pipeline = i.pipeline AND t.stage = i.stage
       LEFT JOIN worker AS w ON w.id = i.worker
      WHERE i.phase = 'active'
        AND (w.id IS NULL OR w.boot <> :boot OR :now - w.beat_at > t.lease_ms OR i.deadline < :now)
      LIMIT :most)
RETURNING item.id, item.version, item.run, item.stage, item.phase, item.generation, item.fence,
          item.attempt, item.error
