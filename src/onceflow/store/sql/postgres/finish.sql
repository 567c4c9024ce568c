-- finish: (stage, active) -> (next stage, ready | waiting), (stage, waiting), done or failed.
-- Only with the current fence: a lease that was lost changes nothing. One result per stage and generation.
WITH wish AS MATERIALIZED (  -- what many have in common comes once, as a shape; each says which is its own
  SELECT w.place, w.item, w.fence, w.body,
         (CAST(:stages AS text[]))[w.shape] AS stage, (CAST(:next_stages AS text[]))[w.shape] AS next_stage,
         (CAST(:phases AS text[]))[w.shape] AS phase, (CAST(:attempts AS bigint[]))[w.shape] AS attempt,
         (CAST(:used AS bigint[]))[w.shape] AS used, (CAST(:lanes AS text[]))[w.shape] AS lane,
         (CAST(:delays AS bigint[]))[w.shape] AS delay, (CAST(:errors AS text[]))[w.shape] AS error,
         (CAST(:codes AS text[]))[w.shape] AS code, (CAST(:claimed AS bigint[]))[w.shape] AS claimed_at,
         (CAST(:events AS bigint[]))[w.shape] AS events, (CAST(:kinds AS text[]))[w.shape] AS kind,
         (CAST(:datas AS text[]))[w.shape] AS data
    FROM unnest(CAST(:places AS bigint[]), CAST(:items AS bigint[]), CAST(:fences AS bigint[]),
                CAST(:bodies AS bytea[]), CAST(:shapes AS integer[])) AS w (place, item, fence, body, shape)),
clock AS MATERIALIZED (SELECT clock_ms(:now) AS now),
moved AS (
  UPDATE item
     SET stage = w.next_stage, phase = w.phase, attempt = w.attempt, lane = w.lane,
         due_at = c.now + w.delay, error = w.error, error_code = w.code,
         version = item.version + w.events,
         worker = NULL, deadline = NULL, claimed_at = NULL, updated_at = c.now
    FROM wish AS w CROSS JOIN clock AS c
   WHERE item.id = w.item
     AND item.fence = w.fence AND item.stage = w.stage
     AND item.phase || '' = 'active'  -- || '': by the items' ids, never by way of all active ones
  RETURNING w.*, c.now, item.version - w.events AS version, item.run, item.generation),
stored AS (
  INSERT INTO result (item, stage, generation, at, body)
  SELECT item, stage, generation, now, body FROM moved WHERE body IS NOT NULL),
logged AS (
  INSERT INTO event (at, kind, item, n, run, stage, next_stage, phase, generation, fence, attempt, worker,
                     ms, data)
  SELECT m.now, m.kind, m.item, m.version + 1, m.run, m.stage, nullif(m.next_stage, m.stage), m.phase,
         m.generation, m.fence, m.used, :worker, m.now - m.claimed_at, m.data
    FROM moved AS m WHERE m.events > 0)
SELECT array_agg(place) AS kept FROM moved
