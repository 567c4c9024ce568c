-- a stage is paused: nothing of it is claimed until it is resumed.
UPDATE stage SET paused_at = coalesce(paused_at, clock_ms(:now)), paused_why = :why
 WHERE pipeline = :pipeline AND stage = :stage RETURNING stage
