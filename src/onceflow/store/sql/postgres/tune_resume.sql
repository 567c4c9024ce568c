-- a stage goes on.
UPDATE stage SET paused_at = NULL, paused_why = NULL
 WHERE pipeline = :pipeline AND stage = :stage RETURNING stage
