-- finish: (stage, active) -> (next stage, ready | waiting), (stage, waiting), done or failed; or at once
-- (next stage, active) for the same worker, where that was asked for and nothing bounds the next stage.
-- Only with the current fence: a lease that was lost changes nothing.
UPDATE item
   SET stage = :stage, phase = :phase, attempt = :attempt, lane = :lane, due_at = :due_at,
       error = :error, error_code = :error_code, version = version + :events + :again,
       fence = fence + :again, worker = CASE :again WHEN 1 THEN :worker END,
       claimed_at = CASE :again WHEN 1 THEN :now END, deadline = :now + :lease_ms, updated_at = :now
  FROM json_each(:held) AS h
 WHERE item.id = CAST(h.key AS INTEGER)
   AND item.fence = h.value AND item.stage = :from_stage AND item.phase = 'active'
