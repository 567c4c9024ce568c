-- finish asked again after a lost reply: which of these leases were kept the first time?
-- Whoever else moves an item raises its fence, so an event with this fence is the holder's own.
SELECT json_group_array(f.value ->> 0)
  FROM json_each(:rows) AS f
 WHERE EXISTS (SELECT 1 FROM event
                WHERE event.item = f.value ->> 1 AND event.fence = f.value ->> 2
                  AND event.worker = :worker AND event.phase <> 'active')
