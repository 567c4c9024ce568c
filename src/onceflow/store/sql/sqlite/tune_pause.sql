-- a stage is paused: nothing of it is claimed until it is resumed. A reason stays until another one is given.
UPDATE stage SET paused_at = coalesce(paused_at, :now), paused_why = coalesce(nullif(:why, ''), paused_why, '')
 WHERE pipeline = :pipeline AND stage = :stage
