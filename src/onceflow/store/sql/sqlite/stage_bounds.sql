-- the bounds of one stage as they are now, with its live leases counted where a limit asks for it.
SELECT coalesce(chosen_limit, declared_limit) AS most, lane_limit, lane_spacing_ms, deadline_ms + lease_ms,
       paused_at IS NOT NULL,
       CASE WHEN coalesce(chosen_limit, declared_limit) IS NULL THEN 0 ELSE (
         SELECT count(*) FROM item
          WHERE item.pipeline = stage.pipeline AND item.stage = stage.stage AND phase = 'active') END
  FROM stage WHERE pipeline = :pipeline AND stage = :stage
