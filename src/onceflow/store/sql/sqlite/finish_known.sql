-- finish asked again after a lost reply: which of these leases were kept the first time?
-- Whoever else moves an item raises its fence, so an event with this fence is the holder's own.
SELECT json_group_array(CAST(h.key AS INTEGER))
  FROM json_each(:held) AS h
 WHERE EXISTS (SELECT 1 FROM event
                WHERE event.item = CAST(h.key AS INTEGER) AND event.fence = h.value
                  AND event.worker = :worker AND event.phase <> 'active')
