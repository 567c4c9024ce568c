-- a page of a run's items in one phase, each with its newest result of one stage.
SELECT i.id, i.pipeline, i.key, i.stage, i.phase, i.generation, i.fence, i.attempt, i.version, i.priority, i.depth,
       i.lane, i.run, i.worker, i.due_at, i.created_at, i.updated_at, i.error, i.error_code,
       (SELECT r.body FROM result AS r
         WHERE r.item = i.id AND r.stage = :result_stage ORDER BY r.generation DESC LIMIT 1) AS body
  FROM member AS m JOIN item AS i ON i.id = m.item
 WHERE m.run = :run AND m.item > :after AND i.phase = :phase
 ORDER BY m.item LIMIT :most
