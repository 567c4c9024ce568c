-- the newest event of all that are there, whether readers may see it by now or not.
SELECT coalesce(max(seq), 0) AS seq FROM event
