-- the lock under which a bounded stage's live leases are counted and given. Its holder waits for nothing.
SELECT lane_limit IS NOT NULL AS laned FROM stage WHERE pipeline = :pipeline AND stage = :stage FOR UPDATE
