-- the latest time the store has written.
SELECT max(coalesce((SELECT max(beat_at) FROM worker), 0),
           coalesce((SELECT at FROM event ORDER BY seq DESC LIMIT 1), 0))
