-- a run begins, and its row is locked; the caller made up its id, so beginning it again is harmless.
INSERT INTO run AS r (id, pipeline, created_at, max_items, max_depth, max_tokens, max_cost, gate, gate_stage)
VALUES (:id, :pipeline, clock_ms(:now), :max_items, :max_depth, :max_tokens, :max_cost, :gate, :gate_stage)
ON CONFLICT (id) DO UPDATE SET id = r.id
RETURNING r.id, r.pipeline, r.sealed, r.accepted, r.max_items, r.max_depth
