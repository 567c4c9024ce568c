-- claim, the choice: the ids to take of one lane and run, by priority, then depth, then age.
SELECT json_group_array(id) FROM (
  SELECT id FROM item
   WHERE pipeline = :pipeline AND stage = :stage AND phase = 'ready'  -- no clock: what is not due is 'waiting'
     AND lane = :lane AND run = :run
   ORDER BY priority, depth, id LIMIT :count)
