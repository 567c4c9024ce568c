-- what a run may still spend; NULL where it has no such ceiling.
SELECT max_tokens - tokens AS tokens, max_cost - cost AS cost FROM run WHERE id = :run
