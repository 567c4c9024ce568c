-- the leases that the database says a worker has.
SELECT i.id, i.pipeline, i.key, i.stage, i.fence, i.ticket, i.attempt, i.generation, i.run, i.depth, i.claimed_at
  FROM item AS i WHERE i.phase = 'active' AND i.worker = :worker ORDER BY i.id
