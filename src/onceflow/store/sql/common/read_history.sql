-- the events of one item, in their order.
SELECT e.seq, e.at, e.kind, i.pipeline, i.key, e.item, e.n, e.run, e.stage,
       e.next_stage, e.phase, e.generation, e.fence, e.attempt, e.worker, e.ms, e.data
  FROM event AS e JOIN item AS i ON i.id = e.item
 WHERE e.item = :item AND e.n > :after ORDER BY e.n LIMIT :most
