-- how long a lease of a stage is, if nothing bounds it and the run has not reached a ceiling.
SELECT (SELECT deadline_ms + lease_ms FROM stage
         WHERE pipeline = :pipeline AND stage = :stage AND paused_at IS NULL
           AND coalesce(chosen_limit, declared_limit, lane_limit) IS NULL
           AND (SELECT halted IS NULL FROM run WHERE run.id = :run))
