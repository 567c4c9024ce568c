-- why a claim may have given nothing: the stage's limit, its leases, its pause, and what is ready.
SELECT coalesce(chosen_limit, declared_limit), paused_at IS NOT NULL,
       (SELECT count(*) FROM item AS i WHERE i.stage = s.stage AND i.phase = 'active'),
       EXISTS (SELECT 1 FROM item AS i WHERE i.stage = s.stage AND i.phase = 'ready')
  FROM stage AS s WHERE s.stage = :stage
