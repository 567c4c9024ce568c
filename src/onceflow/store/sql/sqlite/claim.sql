-- claim: (stage, ready) -> (stage, active). The fence moves on: an older lease can finish nothing. What waits in a
-- local queue, or for its turn to run alone, has not begun.
UPDATE item
   SET phase = 'active', fence = fence + 1, attempt = attempt + 1, version = version + 1, ticket = :ticket,
       begun = CASE WHEN :prefetch OR deaths >= :deaths_max THEN 0 ELSE 1 END, worker = :worker, claimed_at = :now, deadline = :now + :deadline_ms, updated_at = :now
 WHERE id IN (SELECT value FROM json_each(:ids))
   AND (phase = 'ready' OR phase = 'waiting' AND due_at IS NULL)
