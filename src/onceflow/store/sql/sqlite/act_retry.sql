-- retry: done, failed, cancelled -> (stage, ready), as a new generation; or (stage, waiting) -> ready now.
UPDATE item
   SET phase = 'ready', stage = CASE WHEN :stage = '' THEN item.stage ELSE :stage END,
       lane = t.value ->> 2,
       generation = generation + (phase <> 'waiting'), attempt = 0, deaths = 0, fence = fence + 1,
       version = version + 1, due_at = NULL, error = NULL, error_code = NULL, updated_at = :now
  FROM json_each(:targets) AS t
 WHERE item.id = t.value ->> 0 AND item.version = t.value ->> 1
   AND (phase IN ('done', 'failed', 'cancelled') OR phase = 'waiting' AND due_at IS NOT NULL AND :stage = '')
RETURNING item.id, item.version, item.run, item.stage, item.phase, item.generation, item.fence, item.attempt
