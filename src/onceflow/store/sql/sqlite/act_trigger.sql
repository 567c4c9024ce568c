-- trigger: (stage, waiting), held -> (stage, ready).
UPDATE item
   SET phase = 'ready', fence = fence + 1, version = version + 1, updated_at = :now
  FROM json_each(:targets) AS t
 WHERE item.id = t.value ->> 0 AND item.version = t.value ->> 1
   AND phase = 'waiting' AND due_at IS NULL
RETURNING item.id, item.version, item.run, item.stage, item.phase, item.generation, item.fence, item.attempt
