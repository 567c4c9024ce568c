-- add, the usual case: nothing -> (first stage, ready | waiting), or at once (first stage, active) for the
-- worker that adds them, where nothing bounds the stage. Only into a new run, and only new keys: the rest is
-- left to the longer way.
WITH clock AS MATERIALIZED (SELECT clock_ms(:now) AS now),
place AS MATERIALIZED (
  SELECT CAST(CAST(:claim AS boolean) AND s.paused_at IS NULL
              AND coalesce(s.chosen_limit, s.declared_limit, s.lane_limit) IS NULL AS integer) AS claim,
         s.deadline_ms + s.lease_ms AS lease_ms
    FROM stage AS s
   WHERE s.pipeline = :pipeline AND s.stage = :stage
     AND NOT EXISTS (SELECT 1 FROM run AS r WHERE r.id = :run)),
seed AS MATERIALIZED (  -- ids in the order they came, rows in the order of their keys
  SELECT nextval(pg_get_serial_sequence('item', 'id')) AS id, s.*
    FROM (SELECT w.key, w.priority, w.depth, w.lane, w.body
            FROM unnest(CAST(:keys AS text[]), CAST(:priorities AS bigint[]), CAST(:depths AS bigint[]),
                        CAST(:lanes AS text[]), CAST(:bodies AS bytea[]))
                 WITH ORDINALITY AS w (key, priority, depth, lane, body, place)
           ORDER BY w.place OFFSET 0) AS s),
keyed AS (
  INSERT INTO alias (pipeline, short_key, item)
  SELECT :pipeline, shorten(s.key), s.id FROM seed AS s CROSS JOIN place ORDER BY s.key
  ON CONFLICT (pipeline, short_key) DO NOTHING
  RETURNING item),
made AS (
  INSERT INTO item (id, pipeline, key, stage, phase, run, lane, priority, depth, version, fence, attempt, worker,
                    claimed_at, deadline, created_at, updated_at)
  SELECT s.id, :pipeline, s.key, :stage, CASE p.claim WHEN 1 THEN 'active' ELSE :phase END, :run, s.lane,
         s.priority, s.depth, 1 + p.claim, p.claim, p.claim, CASE p.claim WHEN 1 THEN :worker END,
         CASE p.claim WHEN 1 THEN c.now END, CASE p.claim WHEN 1 THEN c.now + p.lease_ms END, c.now, c.now
    FROM seed AS s CROSS JOIN place AS p CROSS JOIN clock AS c
   WHERE (s.id IN (SELECT keyed.item FROM keyed)) IS TRUE  -- IS TRUE: hashed, no join
  RETURNING id, key, fence, worker, created_at, depth),
begun AS (  -- no ON CONFLICT: if somebody begins this run at the same moment, nothing here happens
  INSERT INTO run (id, pipeline, created_at, sealed, accepted, max_items, max_depth, max_tokens, max_cost,
                   gate, gate_stage)
  SELECT :run, :pipeline, c.now, CASE m.made WHEN :count THEN :seal ELSE 0 END, m.made, :max_items, :max_depth,
         :max_tokens, :max_cost, :gate, :gate_stage
    FROM clock AS c CROSS JOIN place AS p CROSS JOIN (SELECT count(*) AS made FROM made) AS m
  RETURNING id),
logged AS (
  INSERT INTO event (at, kind, item, n, run, stage, phase, generation, fence, attempt, worker)
  SELECT m.created_at, e.kind, m.id, e.n, :run, :stage, e.phase, 1, e.fence, e.fence,
         CASE e.n WHEN 2 THEN m.worker END
    FROM made AS m
   CROSS JOIN (VALUES (1, 'added', CAST(:phase AS text), 0), (2, 'claimed', 'active', 1)) AS e (n, kind, phase, fence)
   WHERE e.n <= 1 + m.fence
   ORDER BY m.id, e.n),
told AS (  -- who could not claim them leaves them to others
  SELECT pg_notify('onceflow', :sender) FROM (SELECT 1 FROM made WHERE fence = 0 LIMIT 1) AS ready),
joined AS (INSERT INTO member (run, item, since, depth) SELECT :run, id, created_at, depth FROM made),
stored AS (
  INSERT INTO result (item, stage, generation, at, body)
  SELECT s.id, '', 1, c.now, s.body FROM seed AS s CROSS JOIN clock AS c
   WHERE s.body IS NOT NULL AND (s.id IN (SELECT keyed.item FROM keyed)) IS TRUE)
SELECT (SELECT count(*) FROM begun) AS begun, array_agg(id) AS ids, array_agg(key) AS keys,
       coalesce(max(fence), 0) AS claimed, max(created_at) AS now, (SELECT count(*) FROM told) AS told
  FROM made
