-- cancel: waiting, ready, active -> cancelled. A worker that has it loses its lease.
UPDATE item
   SET phase = 'cancelled', fence = fence + 1, version = version + 1, due_at = NULL,
       worker = NULL, deadline = NULL, claimed_at = NULL, error = :why, error_code = 'cancelled',
       updated_at = :now
  FROM json_each(:targets) AS t
 WHERE item.id = t.value ->> 0 AND item.version = t.value ->> 1
   AND phase IN ('waiting', 'ready', 'active')
RETURNING item.id, item.version, item.run, item.stage, item.phase, item.generation, item.fence, item.attempt
