-- finish asked again after a lost reply: which of these leases were kept the first time?
-- Whoever else moves an item raises its fence, so an event with this fence is the holder's own.
SELECT f.place
  FROM unnest(CAST(:places AS bigint[]), CAST(:items AS bigint[]), CAST(:fences AS bigint[]))
       AS f (place, item, fence)
 WHERE (SELECT true FROM event AS e
         WHERE e.item = f.item AND e.fence = f.fence AND e.worker = :worker AND e.phase <> 'active'
         LIMIT 1)
