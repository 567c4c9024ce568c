-- the stages this database knows, with their bounds and how many leases they have now.
SELECT s.pipeline, s.stage, s.position, s.is_gate, s.declared_limit, s.chosen_limit, s.lane_limit,
       s.lane_spacing_ms, s.attempts, s.lease_ms, s.deadline_ms, s.paused_at, s.paused_why,
       (SELECT count(*) FROM item AS i
         WHERE i.pipeline = s.pipeline AND i.stage = s.stage AND i.phase = 'active') AS active
  FROM stage AS s ORDER BY s.pipeline, s.position
