-- every result of a stage with the fence of the attempt that committed it.
SELECT r.item, r.stage, r.generation, r.body,
       (SELECT e.fence FROM event AS e
         WHERE e.item = r.item AND e.stage = r.stage AND e.generation = r.generation
           AND e.worker IS NOT NULL AND (e.next_stage IS NOT NULL OR e.phase = 'done') LIMIT 1)
  FROM result AS r WHERE r.stage <> '' ORDER BY r.item, r.stage, r.generation
