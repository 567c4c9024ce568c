-- finish: (stage, active) -> (next stage, ready | waiting), (stage, waiting), done or failed; or at once
-- (next stage, active) for the same worker, where that was asked for and nothing bounds the next stage.
-- Only with the current fence and ticket: a lease that was lost changes nothing.
UPDATE item
   SET stage = :stage, phase = :phase, attempt = :attempt, lane = :lane, due_at = :due_at,
       error = :error, error_code = :error_code, version = version + :events + :again,
       deaths = CASE WHEN :stage = item.stage THEN deaths ELSE 0 END,
       fence = fence + :again, worker = CASE :again WHEN 1 THEN :worker END,
       ticket = CASE :again WHEN 1 THEN :ticket ELSE ticket END, begun = :again,
       claimed_at = CASE :again WHEN 1 THEN :now END, deadline = :now + :lease_ms, updated_at = :now
  FROM json_each(:held) AS h
 WHERE item.id = h.value ->> 0
   AND (item.fence, item.ticket) = (h.value ->> 1, h.value ->> 2)
   AND item.stage = :from_stage AND item.phase = 'active'
