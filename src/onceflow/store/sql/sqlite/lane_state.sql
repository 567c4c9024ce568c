-- how many leases a lane has now, and when its next start is allowed.
SELECT (SELECT count(*) FROM item
         WHERE pipeline = :pipeline AND stage = :stage AND phase = 'active' AND lane = :lane),
       coalesce((SELECT next_at FROM lane
                  WHERE pipeline = :pipeline AND stage = :stage AND lane = :lane), 0)
