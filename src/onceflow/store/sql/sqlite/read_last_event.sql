-- the newest event of all.
SELECT coalesce(max(seq), 0) AS seq FROM event
