-- gate: nothing -> (gate stage, ready). One item of a run, whose key nobody else may use.
INSERT INTO item (pipeline, key, stage, phase, run, priority, version, created_at, updated_at)
SELECT pipeline, :key, gate_stage, 'ready', id, 0, 1, :now, :now FROM run WHERE id = :run
ON CONFLICT (pipeline, key) DO NOTHING
RETURNING id
