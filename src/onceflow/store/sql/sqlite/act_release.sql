-- release: (stage, active) -> (stage, ready), by an operator. It costs no attempt; the worker loses its lease.
UPDATE item
   SET phase = 'ready', fence = fence + 1, version = version + 1, attempt = max(attempt - 1, 0),
       worker = NULL, deadline = NULL, claimed_at = NULL, updated_at = :now
  FROM json_each(:targets) AS t
 WHERE item.id = t.value ->> 0 AND item.version = t.value ->> 1 AND phase = 'active'
RETURNING item.id, item.version, item.run, item.stage, item.phase, item.generation, item.fence, item.attempt
