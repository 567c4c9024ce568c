-- add: nothing -> (first stage, ready | waiting), or at once (first stage, active) for the worker that adds them
-- (`begun` is 1), where nothing bounds the stage. A key that is there already stays as it is.
INSERT INTO item (pipeline, key, stage, phase, run, lane, priority, depth, version, fence, attempt, worker,
                  claimed_at, deadline, created_at, updated_at)
SELECT :pipeline, k.value ->> 0, :stage, :phase, :run, k.value ->> 3, k.value ->> 1, k.value ->> 2, 1 + :begun,
       :begun, :begun, :worker, CASE :begun WHEN 1 THEN :now END, :now + :lease_ms, :now, :now
  FROM json_each(:rows) AS k WHERE true
ON CONFLICT (pipeline, key) DO NOTHING
