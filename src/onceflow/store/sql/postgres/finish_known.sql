-- finish asked again after a lost reply: which of these leases were kept the first time?
-- Whoever else moves an item raises its fence, so an event with this fence is the holder's own. A server that has lost
-- its last commits may give the same id and fence to another key.
SELECT f.place
  FROM unnest(CAST(:places AS bigint[]), CAST(:items AS bigint[]), CAST(:fences AS bigint[]), CAST(:pipelines AS text[]),
              CAST(:keys AS text[]))
       AS f (place, item, fence, pipeline, key)
 WHERE (SELECT true FROM event AS e
         WHERE e.item = f.item AND e.fence = f.fence AND e.worker = :worker AND e.phase <> 'active'
         LIMIT 1)
   AND (SELECT a.item FROM alias AS a WHERE a.pipeline = f.pipeline AND a.short_key = shorten(f.key)) = f.item
