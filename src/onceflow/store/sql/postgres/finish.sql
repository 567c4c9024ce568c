-- finish: (stage, active) -> (next stage, ready | waiting), (stage, waiting), done or failed; or at once
-- (next stage, active) for the same worker, where that was asked for and nothing bounds the next stage.
-- Only with the current fence: a lease that was lost changes nothing. One result per stage and generation.
WITH shape AS MATERIALIZED (  -- who goes on at once: for how long its next lease is. What its run spends at the
                              -- same moment may be all that it had.
  SELECT array_agg((SELECT s.deadline_ms + s.lease_ms FROM stage AS s
                     WHERE s.pipeline = g.pipeline AND s.stage = g.stage AND s.paused_at IS NULL
                       AND coalesce(s.chosen_limit, s.declared_limit, s.lane_limit) IS NULL
                       AND (SELECT r.halted IS NULL AND coalesce(r.tokens + g.tokens < r.max_tokens, true)
                                   AND coalesce(r.cost + g.cost < r.max_cost, true)
                              FROM run AS r WHERE r.id = g.run)) ORDER BY g.number) AS lease_ms
    FROM unnest(CAST(:pipelines AS text[]), CAST(:next_stages AS text[]), CAST(:runs AS text[]),
                CAST(:tokens AS bigint[]), CAST(:costs AS double precision[]))
         WITH ORDINALITY AS g (pipeline, stage, run, tokens, cost, number)),
wish AS MATERIALIZED (  -- what many have in common comes once, as a shape; each says which is its own
  SELECT w.place, w.item, w.fence, coalesce(w.body, (CAST(:nothings AS bytea[]))[w.shape]) AS body,
         (CAST(:stages AS text[]))[w.shape] AS stage, (CAST(:next_stages AS text[]))[w.shape] AS next_stage,
         (CAST(:phases AS text[]))[w.shape] AS phase, (CAST(:attempts AS bigint[]))[w.shape] AS attempt,
         (CAST(:used AS bigint[]))[w.shape] AS used, (CAST(:lanes AS text[]))[w.shape] AS lane,
         (CAST(:delays AS bigint[]))[w.shape] AS delay, (CAST(:errors AS text[]))[w.shape] AS error,
         (CAST(:codes AS text[]))[w.shape] AS code, (CAST(:claimed AS bigint[]))[w.shape] AS claimed_at,
         (CAST(:events AS bigint[]))[w.shape] AS events, (CAST(:kinds AS text[]))[w.shape] AS kind,
         (CAST(:datas AS text[]))[w.shape] AS data, shape.lease_ms[w.shape] AS lease_ms,
         CASE WHEN shape.lease_ms[w.shape] IS NULL THEN 0 ELSE 1 END AS again
    FROM shape CROSS JOIN (
           SELECT item, fence, body, coalesce(shape, 1) AS shape, place
             FROM unnest(CAST(CAST(:items AS text) AS bigint[]), CAST(CAST(:fences AS text) AS bigint[]),
                         CAST(:bodies AS bytea[]), CAST(CAST(:shapes AS text) AS integer[]))
                  WITH ORDINALITY AS u (item, fence, body, shape, place) OFFSET 0) AS w),
clock AS MATERIALIZED (SELECT clock_ms(:now) AS now),
moved AS (
  UPDATE item
     SET stage = w.next_stage, phase = CASE w.again WHEN 1 THEN 'active' ELSE w.phase END,
         attempt = w.attempt + w.again, fence = item.fence + w.again, lane = w.lane,
         due_at = c.now + w.delay, error = w.error, error_code = w.code,
         version = item.version + w.events + w.again, worker = CASE w.again WHEN 1 THEN :worker END,
         claimed_at = CASE w.again WHEN 1 THEN c.now END, deadline = c.now + w.lease_ms, updated_at = c.now
    FROM wish AS w CROSS JOIN clock AS c
   WHERE item.id = w.item
     AND item.fence = w.fence AND item.stage = w.stage
     AND item.phase || '' = 'active'  -- || '': by the items' ids, never by way of all active ones
  RETURNING w.*, c.now, item.version - w.events - w.again AS version, item.run, item.generation),
stored AS (
  INSERT INTO result (item, stage, generation, at, body)
  SELECT item, stage, generation, now, body FROM moved WHERE body IS NOT NULL),
logged AS (
  INSERT INTO event (at, kind, item, n, run, stage, next_stage, phase, generation, fence, attempt, worker,
                     ms, data)
  SELECT m.now, m.kind, m.item, m.version + 1, m.run, m.stage, nullif(m.next_stage, m.stage), m.phase,
         m.generation, m.fence, m.used, :worker, m.now - m.claimed_at, m.data
    FROM moved AS m WHERE m.events > 0
  UNION ALL
  SELECT m.now, 'claimed', m.item, m.version + m.events + 1, m.run, m.next_stage, NULL, 'active',
         m.generation, m.fence + 1, 1, :worker, NULL, NULL
    FROM moved AS m WHERE m.again = 1)
SELECT array_agg(place) AS kept, array_agg(place) FILTER (WHERE again = 1) AS continued, max(now) AS now FROM moved
