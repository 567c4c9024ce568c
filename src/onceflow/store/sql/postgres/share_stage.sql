-- claims of a stage share this: whoever changes its bounds waits for them, and they for him.
SELECT pg_advisory_xact_lock_shared(:class, :key)
