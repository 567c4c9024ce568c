-- finish: (stage, active) -> (next stage, ready | waiting), (stage, waiting), done or failed.
-- Only with the current fence: a lease that was lost changes nothing.
UPDATE item
   SET stage = :stage, phase = :phase, attempt = :attempt, lane = :lane, due_at = :due_at,
       error = :error, error_code = :error_code, version = version + :events,
       worker = NULL, deadline = NULL, claimed_at = NULL, updated_at = :now
  FROM json_each(:held) AS h
 WHERE item.id = CAST(h.key AS INTEGER)
   AND item.fence = h.value AND item.stage = :from_stage AND item.phase = 'active'
