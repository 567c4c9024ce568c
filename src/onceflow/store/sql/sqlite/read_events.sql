-- a page of the history, in the order of the commits: one writer at a time numbers them.
SELECT e.seq, e.at, e.kind, coalesce(i.pipeline, e.pipeline) AS pipeline, i.key, e.item, e.n, e.run, e.stage,
       e.next_stage, e.phase, e.generation, e.fence, e.attempt, e.worker, e.ms, e.data
  FROM event AS e LEFT JOIN item AS i ON i.id = e.item
 WHERE e.seq > :after
   AND (:item IS NULL OR e.item = :item)
   AND (:run IS NULL OR e.run = :run)
   AND (:pipeline IS NULL OR coalesce(i.pipeline, e.pipeline) = :pipeline)
   AND (:kinds IS NULL OR replace(:kinds, ' ' || e.kind || ' ', '') <> :kinds)
 ORDER BY e.seq LIMIT :most
