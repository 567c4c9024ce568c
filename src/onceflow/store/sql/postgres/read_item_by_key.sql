-- one item by its key, or by another key of the same item.
SELECT i.id, i.pipeline, i.key, i.stage, i.phase, i.generation, i.fence, i.attempt, i.version, i.priority, i.depth,
       i.lane, i.run, i.worker, i.due_at, i.created_at, i.updated_at, i.error, i.error_code
  FROM item AS i
 WHERE i.id = (SELECT a.item FROM alias AS a WHERE a.pipeline = :pipeline AND a.short_key = shorten(:key))
