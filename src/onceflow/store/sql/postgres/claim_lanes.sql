-- claim in lanes: (stage, ready) -> (stage, active), one item of each open lane, the lanes in turn.
-- Its stage's row is locked. Each step of the walk costs a few index steps, however full a lane is.
WITH RECURSIVE bounds AS MATERIALIZED (
  SELECT s.*, CASE WHEN s.paused THEN 0
                   ELSE least(CAST(:count AS bigint), s.most - s.active) END AS room
    FROM (SELECT clock_ms(:now) AS now, coalesce(chosen_limit, declared_limit) AS most, lane_limit,
                 lane_spacing_ms, deadline_ms + lease_ms AS lease_ms, paused_at IS NOT NULL AS paused,
                 CASE WHEN coalesce(chosen_limit, declared_limit) IS NOT NULL THEN (
                   SELECT count(*) FROM item AS i
                    WHERE i.pipeline = :pipeline AND i.stage = :stage AND i.phase = 'active') END AS active
            FROM stage WHERE pipeline = :pipeline AND stage = :stage) AS s),
walk (step, at, wrapped, ended, lane, run, spare, opens_at, served) AS (
  SELECT 0, CAST(:lane AS text) COLLATE "C", CAST(:lane AS text) = '', false,
         CAST(NULL AS text) COLLATE "C", CAST(NULL AS text) COLLATE "C", false, CAST(NULL AS bigint),
         CAST(0 AS bigint)
    FROM bounds WHERE bounds.room > 0
  UNION ALL
  SELECT w.step + 1,
         CASE WHEN stop.here THEN '' ELSE n.lane END,
         w.wrapped OR stop.here,
         stop.here AND w.wrapped,
         CASE WHEN NOT stop.here THEN n.lane END,
         chosen.run,
         state.active + 1 < b.lane_limit AND b.lane_spacing_ms = 0,
         state.next_at,
         w.served + CASE WHEN chosen.run IS NULL THEN 0 ELSE 1 END
    FROM walk AS w
   CROSS JOIN bounds AS b
   CROSS JOIN LATERAL (
     SELECT (SELECT i.lane FROM item AS i
              WHERE i.pipeline = :pipeline AND i.stage = :stage AND i.phase = 'ready' AND i.lane > w.at
              ORDER BY i.lane LIMIT 1) AS lane OFFSET 0) AS n  -- OFFSET 0: looked up once a step
   CROSS JOIN LATERAL (
     SELECT n.lane IS NULL OR w.wrapped AND CAST(:lane AS text) <> '' AND n.lane > CAST(:lane AS text)
            AS here) AS stop
    LEFT JOIN LATERAL (
     SELECT (SELECT count(*) FROM item AS a
              WHERE a.pipeline = :pipeline AND a.stage = :stage AND a.phase = 'active'
                AND a.lane = n.lane) AS active,
            coalesce((SELECT l.next_at FROM lane AS l
                       WHERE l.pipeline = :pipeline AND l.stage = :stage AND l.lane = n.lane), 0) AS next_at
      WHERE NOT stop.here OFFSET 0) AS state ON true
    LEFT JOIN LATERAL (
     WITH RECURSIVE turn (run) AS (
       SELECT (SELECT i.run FROM item AS i
                WHERE i.pipeline = :pipeline AND i.stage = :stage AND i.phase = 'ready' AND i.lane = n.lane
                ORDER BY i.run LIMIT 1)
       UNION ALL
       SELECT (SELECT i.run FROM item AS i
                WHERE i.pipeline = :pipeline AND i.stage = :stage AND i.phase = 'ready' AND i.lane = n.lane
                  AND i.run > turn.run
                ORDER BY i.run LIMIT 1)
         FROM turn WHERE turn.run IS NOT NULL)
     SELECT t.run
       FROM (SELECT run, row_number() OVER (ORDER BY run) AS number, count(*) OVER () AS total
               FROM (SELECT run FROM turn
                      WHERE run IS NOT NULL
                        AND (SELECT r.halted IS NULL FROM run AS r WHERE r.id = turn.run)
                      LIMIT :runs_max) AS going) AS t
      WHERE t.number - 1 = CAST(:turn AS bigint) % t.total
        AND state.active < b.lane_limit AND state.next_at <= b.now) AS chosen ON true
   WHERE w.step < :walked AND w.served < b.room AND NOT w.ended),
walked AS MATERIALIZED (SELECT * FROM walk WHERE step > 0),
picked AS MATERIALIZED (
  SELECT p.id, w.step, w.lane, w.spare
    FROM walked AS w
   CROSS JOIN LATERAL (
     SELECT i.id FROM item AS i
      WHERE i.pipeline = :pipeline AND i.stage = :stage AND i.phase = 'ready'
        AND i.lane = w.lane AND i.run = w.run
      ORDER BY i.priority, i.depth, i.id LIMIT 1 FOR UPDATE SKIP LOCKED) AS p
   WHERE w.run IS NOT NULL),
claimed AS (
  UPDATE item
     SET phase = 'active', fence = fence + 1, attempt = attempt + 1, version = version + 1,
         worker = :worker, claimed_at = b.now, deadline = b.now + b.lease_ms, updated_at = b.now
    FROM picked CROSS JOIN bounds AS b
   WHERE item.id = picked.id
  RETURNING item.id, item.key, item.fence, item.attempt, item.generation, item.run, item.depth,
            item.priority, item.version, b.now, b.most),
logged AS (
  INSERT INTO event (at, kind, item, n, run, stage, phase, generation, fence, attempt, worker, data)
  SELECT now, 'claimed', id, version, run, :stage, 'active', generation, fence, attempt, :worker,
         '{"limit": ' || most || '}'
    FROM claimed ORDER BY priority, depth, id),
spaced AS (
  INSERT INTO lane (pipeline, stage, lane, next_at)
  SELECT :pipeline, :stage, p.lane, b.now + b.lane_spacing_ms
    FROM picked AS p CROSS JOIN bounds AS b WHERE b.lane_spacing_ms > 0
  ON CONFLICT (pipeline, stage, lane) DO UPDATE SET next_at = excluded.next_at),
summary AS MATERIALIZED (
  SELECT (SELECT at FROM walked ORDER BY step DESC LIMIT 1) AS at,
         coalesce((SELECT ended FROM walked ORDER BY step DESC LIMIT 1), true) AS ended,
         (SELECT lane FROM walked WHERE run IS NOT NULL ORDER BY step DESC LIMIT 1) AS served,
         coalesce((SELECT bool_or(spare) FROM picked), false) AS spare,
         least((SELECT min(opens_at) FROM walked, bounds AS b
                 WHERE run IS NULL AND opens_at > b.now) - (SELECT b.now FROM bounds AS b),
               (SELECT min(b.lane_spacing_ms) FROM picked, bounds AS b WHERE b.lane_spacing_ms > 0))
           AS opens_in_ms)
SELECT b.room, b.now, s.at, s.ended, s.served, s.spare, s.opens_in_ms,
       c.id, c.key, c.fence, c.attempt, c.generation, c.run, c.depth, c.priority,
       (SELECT r.body FROM result AS r WHERE r.item = c.id AND r.stage = :before
         ORDER BY r.generation DESC LIMIT 1) AS body
  FROM bounds AS b CROSS JOIN summary AS s LEFT JOIN claimed AS c ON true
 ORDER BY c.priority, c.depth, c.id
