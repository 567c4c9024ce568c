-- whoever changes a stage's bounds waits for the claims under way: none of them has the old bounds in mind.
SELECT pg_advisory_xact_lock(:class, :key)
