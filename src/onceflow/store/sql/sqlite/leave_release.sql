-- leave, in good order: (stage, active) -> (stage, ready), for everything a worker has. It costs no attempt.
UPDATE item
   SET phase = 'ready', fence = fence + 1, version = version + 1, attempt = max(attempt - 1, 0),
       worker = NULL, deadline = NULL, claimed_at = NULL, updated_at = :now
 WHERE phase = 'active' AND worker = :worker
RETURNING id, version, run, stage, phase, generation, fence, attempt
