-- a page of the items of one run, in the order of their ids. NULL means: whatever.
SELECT i.id, i.pipeline, i.key, i.stage, i.phase, i.generation, i.fence, i.attempt, i.version, i.priority, i.depth,
       i.lane, i.run, i.worker, i.due_at, i.created_at, i.updated_at, i.error, i.error_code
  FROM member AS m JOIN item AS i ON i.id = m.item
 WHERE m.run = :run AND m.item > :after
   AND (CAST(:pipeline AS text) IS NULL OR i.pipeline = :pipeline)
   AND (CAST(:stage AS text) IS NULL OR i.stage = :stage)
   AND (CAST(:places AS text) IS NULL OR replace(:places, ' ' || i.stage || '/' || i.phase || ' ', '') <> :places)
   AND (CAST(:phases AS text) IS NULL OR replace(:phases, ' ' || i.phase || ' ', '') <> :phases)
   AND (CAST(:error_code AS text) IS NULL OR i.error_code = :error_code)
 ORDER BY m.item LIMIT :most
