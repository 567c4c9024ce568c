-- an operator's limit for a stage; none goes back to the declared one.
UPDATE stage SET chosen_limit = :most WHERE pipeline = :pipeline AND stage = :stage RETURNING stage
