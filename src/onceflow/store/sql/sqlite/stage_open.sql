-- how long a lease of a stage is, if nothing bounds it and the run has not reached a ceiling, nor will by what is
-- spent at this moment.
SELECT (SELECT deadline_ms + lease_ms FROM stage
         WHERE pipeline = :pipeline AND stage = :stage AND paused_at IS NULL
           AND coalesce(chosen_limit, declared_limit, lane_limit) IS NULL
           AND (SELECT halted IS NULL AND coalesce(tokens + :tokens < max_tokens, true)
                       AND coalesce(cost + :cost < max_cost, true)
                  FROM run WHERE run.id = :run))
