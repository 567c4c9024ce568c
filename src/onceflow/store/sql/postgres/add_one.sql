-- add, one new key into a new run, where nothing bounds the stage: nothing -> (first stage, active) for the worker
-- that adds it. Whatever is otherwise is left to the longer way. What it does is in the database: migration 6.
SELECT add_one(:number, :key, :run, :pipeline, :stage, :worker, :gate, :gate_stage, :now, :lock_class, :lock_key)
