-- add: these items belong to the run now.
INSERT INTO member (run, item) SELECT :run, id FROM unnest(CAST(:ids AS bigint[])) AS m (id)
ON CONFLICT DO NOTHING
RETURNING item
