-- a page of the history, in the order of the numbers, up to what `settled` said before this statement began. For one
-- item all there is: whoever writes its events has its row locked, so none comes in between.
SELECT e.seq, e.at, e.kind, coalesce(i.pipeline, e.pipeline) AS pipeline, i.key, e.item, e.n, e.run, e.stage,
       e.next_stage, e.phase, e.generation, e.fence, e.attempt, e.worker, e.ms, e.data
  FROM event AS e LEFT JOIN item AS i ON i.id = e.item
 WHERE e.seq > :after AND (CAST(:upto AS bigint) IS NULL OR e.seq <= :upto)
   AND (CAST(:item AS bigint) IS NULL OR e.item = :item)
   AND (CAST(:run AS text) IS NULL OR e.run = :run)
   AND (CAST(:pipeline AS text) IS NULL OR coalesce(i.pipeline, e.pipeline) IN (:pipeline, ''))
   AND (CAST(:kinds AS text) IS NULL OR replace(:kinds, ' ' || e.kind || ' ', '') <> :kinds)
 ORDER BY e.seq LIMIT :most
