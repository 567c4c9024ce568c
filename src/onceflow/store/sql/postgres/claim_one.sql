-- claim one item by name: (stage, ready | waiting, held) -> (stage, active), if its lane is open.
-- A bounded stage gives nothing unless its row is locked.
WITH bounds AS MATERIALIZED (
  SELECT s.*, CASE WHEN s.paused OR s.bounded AND NOT :locked THEN 0
                   ELSE least(CAST(:count AS bigint), s.most - s.active) END AS room
    FROM (SELECT clock_ms(:now) AS now, coalesce(chosen_limit, declared_limit) AS most, lane_limit,
                 lane_spacing_ms, deadline_ms + lease_ms AS lease_ms, paused_at IS NOT NULL AS paused,
                 coalesce(chosen_limit, declared_limit, lane_limit) IS NOT NULL AS bounded,
                 CASE WHEN :locked AND coalesce(chosen_limit, declared_limit) IS NOT NULL THEN (
                   SELECT count(*) FROM item AS i
                    WHERE i.pipeline = :pipeline AND i.stage = :stage AND i.phase = 'active') END AS active
            FROM stage WHERE pipeline = :pipeline AND stage = :stage) AS s),
picked AS MATERIALIZED (
  SELECT i.id, i.lane
    FROM item AS i CROSS JOIN bounds AS b
   WHERE b.room > 0 AND i.id = :item AND i.pipeline = :pipeline AND i.stage = :stage
     AND (i.phase = 'ready' OR i.phase = 'waiting' AND i.due_at IS NULL)
     AND (b.lane_limit IS NULL
          OR (SELECT count(*) FROM item AS a
               WHERE a.pipeline = :pipeline AND a.stage = :stage AND a.phase = 'active'
                 AND a.lane = i.lane) < b.lane_limit
             AND NOT EXISTS (SELECT 1 FROM lane AS l
                              WHERE l.pipeline = :pipeline AND l.stage = :stage AND l.lane = i.lane
                                AND l.next_at > b.now))
     FOR UPDATE OF i),
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
    FROM claimed),
spaced AS (
  INSERT INTO lane (pipeline, stage, lane, next_at)
  SELECT :pipeline, :stage, p.lane, b.now + b.lane_spacing_ms
    FROM picked AS p CROSS JOIN bounds AS b WHERE b.lane_limit IS NOT NULL AND b.lane_spacing_ms > 0
  ON CONFLICT (pipeline, stage, lane) DO UPDATE SET next_at = excluded.next_at)
SELECT b.bounded, b.room, CAST(1 AS bigint) AS runs, b.now,
       CASE WHEN (SELECT count(*) FROM picked) = :count THEN EXISTS (
         SELECT 1 FROM item AS i
          WHERE i.pipeline = :pipeline AND i.stage = :stage AND i.phase = 'ready'
            AND i.id <> :item) ELSE false END AS more,
       CAST(0 AS bigint) AS contested,
       c.id, c.key, c.fence, c.attempt, c.generation, c.run, c.depth, c.priority,
       (SELECT r.body FROM result AS r WHERE r.item = c.id AND r.stage = :before
         ORDER BY r.generation DESC LIMIT 1) AS body
  FROM bounds AS b LEFT JOIN claimed AS c ON true
