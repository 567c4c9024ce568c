-- finish: (stage, active) -> (next stage, ready | waiting), (stage, waiting), done or failed.
-- Only with the current fence: a lease that was lost changes nothing.
UPDATE item
   SET stage = f.value ->> 4, phase = f.value ->> 5, attempt = f.value ->> 6, lane = f.value ->> 7,
       due_at = f.value ->> 8, error = f.value ->> 9, error_code = f.value ->> 10,
       version = version + (f.value ->> 11),
       worker = NULL, deadline = NULL, claimed_at = NULL, updated_at = :now
  FROM json_each(:rows) AS f
 WHERE item.id = f.value ->> 1
   AND item.fence = f.value ->> 2 AND item.stage = f.value ->> 3 AND item.phase = 'active'
