-- add: these items belong to the run now, each so deep.
INSERT INTO member (run, item, since, depth)
SELECT :run, m.id, clock_ms(:now), m.depth
  FROM unnest(CAST(:ids AS bigint[]), CAST(:depths AS bigint[])) AS m (id, depth)
ON CONFLICT DO NOTHING
RETURNING item
