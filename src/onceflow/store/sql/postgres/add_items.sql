-- add: nothing -> (first stage, ready | waiting), in the order of the keys. A key that is there stays as it is.
WITH seed AS MATERIALIZED (
  SELECT * FROM unnest(CAST(:ids AS bigint[]), CAST(:keys AS text[]), CAST(:priorities AS bigint[]),
                       CAST(:depths AS bigint[]), CAST(:lanes AS text[]))
         AS s (id, key, priority, depth, lane)),
clock AS MATERIALIZED (SELECT clock_ms(:now) AS now),
keyed AS (
  INSERT INTO alias (pipeline, short_key, item) SELECT :pipeline, shorten(s.key), s.id FROM seed AS s
  ON CONFLICT (pipeline, short_key) DO NOTHING
  RETURNING item),
made AS (
  INSERT INTO item (id, pipeline, key, stage, phase, run, lane, priority, depth, version, created_at, updated_at)
  SELECT s.id, :pipeline, s.key, :stage, :phase, :run, s.lane, s.priority, s.depth, 1, c.now, c.now
    FROM seed AS s CROSS JOIN clock AS c
   WHERE (s.id IN (SELECT keyed.item FROM keyed)) IS TRUE  -- IS TRUE: hashed, no join
  RETURNING id, created_at, depth),
logged AS (
  INSERT INTO event (at, kind, item, n, run, stage, phase, generation, fence, attempt)
  SELECT created_at, 'added', id, 1, :run, :stage, :phase, 1, 0, 0 FROM made ORDER BY id),
joined AS (INSERT INTO member (run, item, since, depth) SELECT :run, id, created_at, depth FROM made)
SELECT id FROM made
