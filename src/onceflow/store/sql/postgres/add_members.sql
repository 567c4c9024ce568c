-- add: these items belong to the run now.
INSERT INTO member (run, item, since) SELECT :run, id, clock_ms(:now) FROM unnest(CAST(:ids AS bigint[])) AS m (id)
ON CONFLICT DO NOTHING
RETURNING item
