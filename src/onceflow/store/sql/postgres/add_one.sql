-- add, one new key into a new run, where nothing bounds the stage: nothing -> (first stage, active) for the worker
-- that adds it. Whatever is otherwise is left to the longer way.
WITH place AS MATERIALIZED (
  SELECT nextval('item_id_seq') AS id, clock_ms(:now) AS now, s.deadline_ms + s.lease_ms AS lease_ms
    FROM stage AS s
   WHERE s.pipeline = :pipeline AND s.stage = :stage AND s.paused_at IS NULL
     AND coalesce(s.chosen_limit, s.declared_limit, s.lane_limit) IS NULL
     AND NOT EXISTS (SELECT 1 FROM run AS r WHERE r.id = :run)),
keyed AS (
  INSERT INTO alias (pipeline, short_key, item) SELECT :pipeline, shorten(:key), p.id FROM place AS p
  ON CONFLICT (pipeline, short_key) DO NOTHING
  RETURNING item),
made AS (
  INSERT INTO item (id, pipeline, key, stage, phase, run, lane, priority, depth, version, fence, attempt, worker,
                    claimed_at, deadline, created_at, updated_at)
  SELECT k.item, :pipeline, :key, :stage, 'active', :run, :lane, :priority, :depth, 2, 1, 1, :worker, p.now,
         p.now + p.lease_ms, p.now, p.now
    FROM keyed AS k CROSS JOIN place AS p
  RETURNING id, created_at),
begun AS (  -- no ON CONFLICT: if somebody begins this run at the same moment, nothing here happens
  INSERT INTO run (id, pipeline, created_at, sealed, accepted, max_depth, max_tokens, max_cost, gate, gate_stage)
  SELECT :run, :pipeline, created_at, :seal, 1, :max_depth, :max_tokens, :max_cost, :gate, :gate_stage FROM made),
logged AS (
  INSERT INTO event (at, kind, item, n, run, stage, phase, generation, fence, attempt, worker)
  SELECT m.created_at, e.kind, m.id, e.n, :run, :stage, e.phase, 1, e.fence, e.fence, e.worker
    FROM made AS m
   CROSS JOIN (VALUES (1, 'added', 'ready', 0, NULL), (2, 'claimed', 'active', 1, CAST(:worker AS text)))
         AS e (n, kind, phase, fence, worker)
   ORDER BY e.n),
joined AS (INSERT INTO member (run, item, since, depth) SELECT :run, id, created_at, :depth FROM made)
SELECT id, created_at AS now FROM made
