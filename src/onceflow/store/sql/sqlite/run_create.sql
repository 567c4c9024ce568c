-- a run begins; the caller made up its id, so beginning it again is harmless.
INSERT INTO run (id, pipeline, created_at, max_items, max_depth, max_tokens, max_cost, gate, gate_stage)
VALUES (:id, :pipeline, :now, :max_items, :max_depth, :max_tokens, :max_cost, :gate, :gate_stage)
ON CONFLICT (id) DO NOTHING
