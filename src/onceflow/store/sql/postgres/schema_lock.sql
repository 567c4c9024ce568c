-- one program at a time looks at the schema and changes it.
SELECT pg_advisory_xact_lock(CAST(:class AS integer), 0)
