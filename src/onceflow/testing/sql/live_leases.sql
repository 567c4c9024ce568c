-- the live leases of each stage and lane, beside what is allowed.
SELECT s.stage, i.lane, count(*), coalesce(s.chosen_limit, s.declared_limit), s.lane_limit
  FROM item AS i JOIN stage AS s ON s.pipeline = i.pipeline AND s.stage = i.stage
 WHERE i.phase = 'active' GROUP BY s.stage, i.lane
