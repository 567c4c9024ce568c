-- the next lane that has something ready: one index step, however many items the lane holds.
SELECT lane FROM item
 WHERE pipeline = :pipeline AND stage = :stage AND phase = 'ready' AND lane > :lane
 ORDER BY lane LIMIT 1
