-- what time it is for this database.
SELECT clock_ms(:now) AS now
