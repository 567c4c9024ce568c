-- one item by its id.
SELECT i.id, i.pipeline, i.key, i.stage, i.phase, i.generation, i.fence, i.ticket, i.attempt, i.version, i.priority, i.depth,
       i.lane, i.run, i.worker, i.due_at, i.created_at, i.updated_at, i.error, i.error_code
  FROM item AS i WHERE i.id = :id
