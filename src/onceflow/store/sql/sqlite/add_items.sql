-- add: nothing -> (first stage, ready | waiting). A key that is there already stays as it is.
INSERT INTO item (pipeline, key, stage, phase, run, lane, priority, depth, version, created_at, updated_at)
SELECT :pipeline, k.value ->> 0, :stage, :phase, :run, k.value ->> 3, k.value ->> 1, k.value ->> 2, 1, :now, :now
  FROM json_each(:rows) AS k WHERE true
ON CONFLICT (pipeline, key) DO NOTHING
