-- begin: the handler of a lease that waited in a local queue is about to run. From now on the attempt counts,
-- and its time runs from now.
UPDATE item
   SET begun = max(begun, 1), deadline = :now + (
         SELECT deadline_ms + lease_ms FROM stage WHERE stage.pipeline = item.pipeline AND stage.stage = item.stage)
  FROM json_each(:leases) AS h
 WHERE item.id = h.value ->> 0 AND (item.fence, item.ticket) = (h.value ->> 1, h.value ->> 2)
   AND item.phase = 'active'
RETURNING item.id, item.fence, item.ticket
