-- claim: (stage, ready) -> (stage, active). The fence moves on: an older lease can finish nothing.
-- The runs take turns, an equal share each. A bounded stage gives nothing unless its row is locked.
WITH RECURSIVE bounds AS MATERIALIZED (
  SELECT s.*, CASE WHEN s.paused OR s.bounded AND NOT :locked THEN 0
                   ELSE least(CAST(:count AS bigint), s.most - s.active) END AS room
    FROM (SELECT clock_ms(:now) AS now, coalesce(chosen_limit, declared_limit) AS most, lane_limit,
                 deadline_ms + lease_ms AS lease_ms, paused_at IS NOT NULL AS paused,
                 coalesce(chosen_limit, declared_limit, lane_limit) IS NOT NULL AS bounded,
                 CASE WHEN :locked AND coalesce(chosen_limit, declared_limit) IS NOT NULL THEN (
                   SELECT count(*) FROM item AS i
                    WHERE i.pipeline = :pipeline AND i.stage = :stage AND i.phase = 'active') END AS active
            FROM stage WHERE pipeline = :pipeline AND stage = :stage) AS s),
turn (run) AS (  -- the runs that have something ready, one index step each
  SELECT (SELECT i.run FROM item AS i
           WHERE i.pipeline = :pipeline AND i.stage = :stage AND i.phase = 'ready' AND i.lane = ''
           ORDER BY i.run LIMIT 1)
    FROM bounds WHERE bounds.room > 0
  UNION ALL
  SELECT (SELECT i.run FROM item AS i
           WHERE i.pipeline = :pipeline AND i.stage = :stage AND i.phase = 'ready' AND i.lane = ''
             AND i.run > turn.run
           ORDER BY i.run LIMIT 1)
    FROM turn WHERE turn.run IS NOT NULL),
runs AS MATERIALIZED (
  SELECT t.run, t.total,
         (t.number - 1 - CAST(:turn AS bigint) % t.total + t.total) % t.total AS place
    FROM (SELECT run, row_number() OVER (ORDER BY run) AS number, count(*) OVER () AS total
            FROM (SELECT run FROM turn
                   WHERE run IS NOT NULL
                     AND (SELECT r.halted IS NULL FROM run AS r WHERE r.id = turn.run)
                   LIMIT :runs) AS going) AS t),
shares AS MATERIALIZED (
  SELECT runs.run, greatest(1, b.room / runs.total) AS share
    FROM runs CROSS JOIN bounds AS b WHERE runs.place < b.room ORDER BY runs.place),
picked AS MATERIALIZED (  -- a bare IN (... LIMIT) may be run again by the planner and take too many
  SELECT p.id, p.priority, p.depth, r.run
    FROM shares AS r
   CROSS JOIN LATERAL (
     SELECT i.id, i.priority, i.depth FROM item AS i
      WHERE i.pipeline = :pipeline AND i.stage = :stage
        AND i.phase = 'ready'  -- no clock here: what is not due yet is waiting
        AND i.lane = '' AND i.run = r.run
      ORDER BY i.priority, i.depth, i.id LIMIT r.share FOR UPDATE SKIP LOCKED) AS p),
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
    FROM claimed ORDER BY priority, depth, id)
SELECT b.bounded, b.room, (SELECT count(*) FROM runs) AS runs, b.now,
       CASE WHEN (SELECT count(*) FROM picked) = :count THEN (  -- one entry further than what was taken
         SELECT count(*) > :count
           FROM (SELECT 1 FROM item AS i
                  WHERE i.pipeline = :pipeline AND i.stage = :stage AND i.phase = 'ready'
                  LIMIT CAST(:count AS bigint) + 1) AS ready) ELSE false END AS more,
       (SELECT coalesce(sum(line.seen - (  -- first in line as this statement sees it, but not picked
                 SELECT count(*) FROM picked AS p
                  WHERE p.run = r.run AND ARRAY[p.priority, p.depth, p.id] <= line.last)), 0)
          FROM shares AS r
         CROSS JOIN LATERAL (
           SELECT count(*) AS seen, max(ARRAY[f.priority, f.depth, f.id]) AS last
             FROM (SELECT i.priority, i.depth, i.id FROM item AS i
                    WHERE i.pipeline = :pipeline AND i.stage = :stage
                      AND i.phase = 'ready' AND i.lane = '' AND i.run = r.run
                    ORDER BY i.priority, i.depth, i.id LIMIT r.share) AS f) AS line) AS contested,
       c.id, c.key, c.fence, c.attempt, c.generation, c.run, c.depth, c.priority,
       (SELECT r.body FROM result AS r WHERE r.item = c.id AND r.stage = :before
         ORDER BY r.generation DESC LIMIT 1) AS body
  FROM bounds AS b LEFT JOIN claimed AS c ON true
 ORDER BY c.priority, c.depth, c.id
