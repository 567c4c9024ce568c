-- a run begins; the caller made up its id, so beginning it again is harmless. It may be given other ceilings.
-- Says what it still accepts.
INSERT INTO run (id, pipeline, created_at, max_items, max_depth, max_tokens, max_cost, gate, gate_stage)
VALUES (:id, :pipeline, :now, :max_items, :max_depth, :max_tokens, :max_cost, :gate, :gate_stage)
ON CONFLICT (id) DO UPDATE
   SET max_tokens = coalesce(excluded.max_tokens, run.max_tokens),
       max_cost = coalesce(excluded.max_cost, run.max_cost),
       halted = CASE WHEN run.tokens >= coalesce(excluded.max_tokens, run.max_tokens)
                     THEN 'its token ceiling is reached'
                     WHEN run.cost >= coalesce(excluded.max_cost, run.max_cost)
                     THEN 'its cost ceiling is reached' END
RETURNING pipeline, sealed, accepted, max_items, max_depth
