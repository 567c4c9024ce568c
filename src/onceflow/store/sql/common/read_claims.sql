-- the leases of a stage that were claimed before a time, the oldest first.
SELECT i.id, i.key, i.depth, i.attempt, i.worker, i.claimed_at
  FROM item AS i
 WHERE i.pipeline = :pipeline AND i.stage = :stage AND i.phase = 'active' AND i.claimed_at < :before
 ORDER BY i.claimed_at, i.id LIMIT :most
