-- items of any pipeline that have this key.
SELECT i.id, i.pipeline, i.key, i.stage, i.phase, i.generation, i.fence, i.attempt, i.version, i.priority, i.depth,
       i.lane, i.run, i.worker, i.due_at, i.created_at, i.updated_at, i.error, i.error_code
  FROM pipeline AS p
  JOIN alias AS a ON a.pipeline = p.name AND a.short_key = shorten(:key)
  JOIN item AS i ON i.id = a.item AND i.key = :key
 ORDER BY i.id LIMIT 20
