-- a program's stage is known, with its bounds; an operator's own limit and pause stay.
INSERT INTO stage AS s (pipeline, stage, position, is_gate, declared_limit, lane_limit, lane_spacing_ms,
                        attempts, lease_ms, deadline_ms)
VALUES (:pipeline, :stage, :position, :is_gate, :declared_limit, :lane_limit, :lane_spacing_ms,
        :attempts, :lease_ms, :deadline_ms)
ON CONFLICT (pipeline, stage) DO UPDATE
   SET position = excluded.position, is_gate = excluded.is_gate, declared_limit = excluded.declared_limit,
       lane_limit = excluded.lane_limit, lane_spacing_ms = excluded.lane_spacing_ms,
       attempts = excluded.attempts, lease_ms = excluded.lease_ms, deadline_ms = excluded.deadline_ms
 WHERE (s.position, s.is_gate, s.declared_limit, s.lane_limit, s.lane_spacing_ms, s.attempts, s.lease_ms,
        s.deadline_ms)
       IS DISTINCT FROM (excluded.position, excluded.is_gate, excluded.declared_limit, excluded.lane_limit,
        excluded.lane_spacing_ms, excluded.attempts, excluded.lease_ms, excluded.deadline_ms)
