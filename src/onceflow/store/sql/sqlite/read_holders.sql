-- who holds up the readers of events: nobody, since there is one writer at a time.
SELECT 0 AS pid, '' AS program, '' AS database, '' AS state, 0 AS ms WHERE :ms < 0
