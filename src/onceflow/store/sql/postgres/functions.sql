-- The functions of the schema as they are now, made anew by every migration: who changes one adds a migration, empty but
-- for the reason, and drops it there if what it takes or gives is other than before.
-- A function is for what must be one word to the server. In one large statement, nothing would see what was committed
-- before it got its locks; in a function every statement sees that. A worker that nobody knows gets nothing: it has
-- signed off, and somebody else's lock kept its last word waiting on the server until then.

-- add, one new key into a new run, where nothing bounds the stage: nothing -> (first stage, active) for the worker that
-- adds it. Gives the item's number, the time, and a number for the next item; NULL if it is otherwise: nothing was done,
-- go the longer way.
--
-- `number` is one that an earlier call gave for the next item. It is durable by then: a crash of the server cannot give it
-- to another item. So the caller may be told before the commit, by an INFO, which the server sends
-- at once: when nothing is left to do that could be refused, and nobody else can have the key or the run. The server goes
-- on to the commit without the caller. Without a number, nothing is told.
CREATE OR REPLACE FUNCTION add_one(
  number bigint, new_key text, in_run text, of_pipeline text, first_stage text, by_worker text, its_gate text,
  its_gate_stage text, fake bigint, lock_class integer, lock_key integer
) RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE
  may_take bigint;
  new_item bigint;
  at_time bigint;
BEGIN
  PERFORM pg_advisory_xact_lock_shared(lock_class, lock_key);  -- nobody changes the stage's bounds meanwhile
  SELECT s.deadline_ms + s.lease_ms INTO may_take
    FROM stage AS s
   WHERE s.pipeline = of_pipeline AND s.stage = first_stage AND s.paused_at IS NULL
     AND coalesce(s.chosen_limit, s.declared_limit, s.lane_limit) IS NULL
     AND NOT EXISTS (SELECT 1 FROM run AS r WHERE r.id = in_run)
     AND EXISTS (SELECT 1 FROM worker AS w WHERE w.id = by_worker);
  IF NOT FOUND THEN
    RETURN NULL;
  END IF;

  INSERT INTO alias (pipeline, short_key, item)
  VALUES (of_pipeline, shorten(new_key), coalesce(number, nextval('item_id_seq')))
  ON CONFLICT (pipeline, short_key) DO NOTHING
  RETURNING item INTO new_item;
  IF NOT FOUND THEN
    RETURN NULL;
  END IF;

  at_time := clock_ms(fake);
  -- No ON CONFLICT: if somebody begins this run at the same moment, nothing here happens.
  INSERT INTO run (id, pipeline, created_at, sealed, accepted, gate, gate_stage)
  VALUES (in_run, of_pipeline, at_time, 1, 1, its_gate, its_gate_stage);

  IF number IS NOT NULL THEN
    RAISE INFO 'onceflow: begun at %', at_time;
  END IF;

  INSERT INTO item (id, pipeline, key, stage, phase, run, version, fence, attempt, worker, claimed_at, deadline,
                    created_at, updated_at)
  VALUES (new_item, of_pipeline, new_key, first_stage, 'active', in_run, 2, 1, 1, by_worker, at_time,
          at_time + may_take, at_time, at_time);

  INSERT INTO member (run, item, since) VALUES (in_run, new_item, at_time);

  INSERT INTO event (at, kind, item, n, run, stage, phase, generation, fence, attempt, worker)
  VALUES (at_time, 'added', new_item, 1, in_run, first_stage, 'ready', 1, 0, 0, NULL),
         (at_time, 'claimed', new_item, 2, in_run, first_stage, 'active', 1, 1, 1, by_worker);

  RETURN ARRAY[new_item, at_time, nextval('item_id_seq')];
END $$;

-- claim: (stage, ready) -> (stage, active). The fence moves on: an older lease can finish nothing.
-- The runs take turns, an equal share each. A bounded stage gives nothing unless its row is locked, and where several
-- runs take turns nothing is given to who asks only once: some may have less than their shares.
CREATE OR REPLACE FUNCTION claim_ready(
  of_pipeline text, of_stage text, stage_before text, wanted bigint, whose_turn bigint, by_worker text,
  is_locked boolean, is_alone boolean, runs_most bigint, fake bigint
) RETURNS TABLE (
  bounded boolean, room bigint, runs bigint, now bigint, more boolean, contested bigint, id bigint, key text,
  fence bigint, attempt bigint, generation bigint, run text, depth bigint, priority bigint, body bytea
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
  RETURN QUERY
  WITH RECURSIVE bounds AS MATERIALIZED (
    SELECT s.*, CASE WHEN s.paused OR s.bounded AND NOT is_locked OR NOT s.known THEN 0
                     ELSE least(wanted, s.most - s.active) END AS room
      FROM (SELECT clock_ms(fake) AS now, coalesce(chosen_limit, declared_limit) AS most, lane_limit,
                   deadline_ms + lease_ms AS lease_ms, paused_at IS NOT NULL AS paused,
                   coalesce(chosen_limit, declared_limit, lane_limit) IS NOT NULL AS bounded,
                   EXISTS (SELECT 1 FROM worker AS w WHERE w.id = by_worker) AS known,
                   CASE WHEN is_locked AND coalesce(chosen_limit, declared_limit) IS NOT NULL THEN (
                     SELECT count(*) FROM item AS i
                      WHERE i.pipeline = of_pipeline AND i.stage = of_stage AND i.phase = 'active') END AS active
              FROM stage WHERE pipeline = of_pipeline AND stage = of_stage) AS s),
  turn (run) AS (  -- the runs that have something ready, one index step each
    SELECT (SELECT i.run FROM item AS i
             WHERE i.pipeline = of_pipeline AND i.stage = of_stage AND i.phase = 'ready' AND i.lane = ''
             ORDER BY i.run LIMIT 1)
      FROM bounds WHERE bounds.room > 0
    UNION ALL
    SELECT (SELECT i.run FROM item AS i
             WHERE i.pipeline = of_pipeline AND i.stage = of_stage AND i.phase = 'ready' AND i.lane = ''
               AND i.run > turn.run
             ORDER BY i.run LIMIT 1)
      FROM turn WHERE turn.run IS NOT NULL),
  runs AS MATERIALIZED (
    SELECT t.run, t.total,
           (t.number - 1 - whose_turn % t.total + t.total) % t.total AS place
      FROM (SELECT run, row_number() OVER (ORDER BY run) AS number, count(*) OVER () AS total
              FROM (SELECT run FROM turn
                     WHERE run IS NOT NULL
                       AND (SELECT r.halted IS NULL FROM run AS r WHERE r.id = turn.run)
                     LIMIT runs_most) AS going) AS t),
  shares AS MATERIALIZED (
    SELECT runs.run, greatest(1, b.room / runs.total) AS share
      FROM runs CROSS JOIN bounds AS b
       WHERE runs.place < b.room AND (runs.total = 1 OR NOT is_alone) ORDER BY runs.place),
  picked AS MATERIALIZED (  -- a bare IN (... LIMIT) may be run again by the planner and take too many
    SELECT p.id, p.priority, p.depth, r.run
      FROM shares AS r
     CROSS JOIN LATERAL (
       SELECT i.id, i.priority, i.depth FROM item AS i
        WHERE i.pipeline = of_pipeline AND i.stage = of_stage
          AND i.phase = 'ready'  -- no clock here: what is not due yet is waiting
          AND i.lane = '' AND i.run = r.run
        ORDER BY i.priority, i.depth, i.id LIMIT r.share FOR UPDATE SKIP LOCKED) AS p),
  claimed AS (
    UPDATE item
       SET phase = 'active', fence = fence + 1, attempt = attempt + 1, version = version + 1,
           worker = by_worker, claimed_at = b.now, deadline = b.now + b.lease_ms, updated_at = b.now
      FROM picked CROSS JOIN bounds AS b
     WHERE item.id = picked.id
    RETURNING item.id, item.key, item.fence, item.attempt, item.generation, item.run, item.depth,
              item.priority, item.version, b.now, b.most),
  logged AS (
    INSERT INTO event (at, kind, item, n, run, stage, phase, generation, fence, attempt, worker, data)
    SELECT now, 'claimed', id, version, run, of_stage, 'active', generation, fence, attempt, by_worker,
           '{"limit": ' || most || '}'
      FROM claimed ORDER BY priority, depth, id)
  SELECT b.bounded, b.room, (SELECT count(*) FROM runs) AS runs, b.now,
         CASE WHEN (SELECT count(*) FROM picked) = wanted THEN (  -- one entry further than what was taken
           SELECT count(*) > wanted
             FROM (SELECT 1 FROM item AS i
                    WHERE i.pipeline = of_pipeline AND i.stage = of_stage AND i.phase = 'ready'
                    LIMIT wanted + 1) AS ready) ELSE false END AS more,
         (SELECT coalesce(sum(line.seen - (  -- first in line as this statement sees it, but not picked
                   SELECT count(*) FROM picked AS p
                    WHERE p.run = r.run AND ARRAY[p.priority, p.depth, p.id] <= line.last)), 0)::bigint
            FROM shares AS r
           CROSS JOIN LATERAL (
             SELECT count(*) AS seen, max(ARRAY[f.priority, f.depth, f.id]) AS last
               FROM (SELECT i.priority, i.depth, i.id FROM item AS i
                      WHERE i.pipeline = of_pipeline AND i.stage = of_stage
                        AND i.phase = 'ready' AND i.lane = '' AND i.run = r.run
                      ORDER BY i.priority, i.depth, i.id LIMIT r.share) AS f) AS line) AS contested,
         c.id, c.key, c.fence, c.attempt, c.generation, c.run, c.depth, c.priority,
         (SELECT r.body FROM result AS r WHERE r.item = c.id AND r.stage = stage_before
           ORDER BY r.generation DESC LIMIT 1) AS body
    FROM bounds AS b LEFT JOIN claimed AS c ON true
   ORDER BY c.priority, c.depth, c.id;
END $$;

-- finish: (stage, active) -> (next stage, ready | waiting), (stage, waiting), done or failed; or at once
-- (next stage, active) for the same worker, where that was asked for and nothing bounds the next stage.
-- Only with the current fence: a lease that was lost changes nothing. One result per stage and generation.
CREATE OR REPLACE FUNCTION finish_attempts(
  by_worker text, fake bigint, items bigint[], fences bigint[], bodies bytea[], of_shapes integer[],
  all_stages text[], all_used bigint[], all_claimed bigint[], all_next_stages text[], all_phases text[],
  all_attempts bigint[], all_lanes text[], all_delays bigint[], all_errors text[], all_codes text[],
  all_events bigint[], all_kinds text[], all_datas text[], all_pipelines text[], all_runs text[],
  all_nothings bytea[], all_tokens bigint[], all_costs double precision[]
) RETURNS TABLE (kept bigint[], continued bigint[], now bigint) LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
  RETURN QUERY
  WITH shape AS MATERIALIZED (  -- who goes on at once: for how long its next lease is. What its run spends at the
                                -- same moment may be all that it had.
    SELECT array_agg((SELECT s.deadline_ms + s.lease_ms FROM stage AS s
                       WHERE s.pipeline = g.pipeline AND s.stage = g.stage AND s.paused_at IS NULL
                         AND coalesce(s.chosen_limit, s.declared_limit, s.lane_limit) IS NULL
                         AND EXISTS (SELECT 1 FROM worker AS w WHERE w.id = by_worker)
                         AND (SELECT r.halted IS NULL AND coalesce(r.tokens + g.tokens < r.max_tokens, true)
                                     AND coalesce(r.cost + g.cost < r.max_cost, true)
                                FROM run AS r WHERE r.id = g.run)) ORDER BY g.number) AS lease_ms
      FROM unnest(all_pipelines, all_next_stages, all_runs, all_tokens, all_costs)
           WITH ORDINALITY AS g (pipeline, stage, run, tokens, cost, number)),
  wish AS MATERIALIZED (  -- what many have in common comes once, as a shape; each says which is its own
    SELECT w.place, w.item, w.fence, coalesce(w.body, all_nothings[w.shape]) AS body,
           all_stages[w.shape] AS stage, all_next_stages[w.shape] AS next_stage,
           all_phases[w.shape] AS phase, all_attempts[w.shape] AS attempt,
           all_used[w.shape] AS used, all_lanes[w.shape] AS lane,
           all_delays[w.shape] AS delay, all_errors[w.shape] AS error,
           all_codes[w.shape] AS code, all_claimed[w.shape] AS claimed_at,
           all_events[w.shape] AS events, all_kinds[w.shape] AS kind,
           all_datas[w.shape] AS data, shape.lease_ms[w.shape] AS lease_ms,
           CASE WHEN shape.lease_ms[w.shape] IS NULL THEN 0 ELSE 1 END AS again
      FROM shape CROSS JOIN (
             SELECT item, fence, body, coalesce(shape, 1) AS shape, place
               FROM unnest(items, fences, bodies, of_shapes)
                    WITH ORDINALITY AS u (item, fence, body, shape, place) OFFSET 0) AS w),
  clock AS MATERIALIZED (SELECT clock_ms(fake) AS now),
  moved AS (
    UPDATE item
       SET stage = w.next_stage, phase = CASE w.again WHEN 1 THEN 'active' ELSE w.phase END,
           attempt = w.attempt + w.again, fence = item.fence + w.again, lane = w.lane,
           due_at = c.now + w.delay, error = w.error, error_code = w.code,
           version = item.version + w.events + w.again, worker = CASE w.again WHEN 1 THEN by_worker END,
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
           m.generation, m.fence, m.used, by_worker, m.now - m.claimed_at, m.data
      FROM moved AS m WHERE m.events > 0
    UNION ALL
    SELECT m.now, 'claimed', m.item, m.version + m.events + 1, m.run, m.next_stage, NULL, 'active',
           m.generation, m.fence + 1, 1, by_worker, NULL, NULL
      FROM moved AS m WHERE m.again = 1)
  SELECT array_agg(place) AS kept, array_agg(place) FILTER (WHERE again = 1) AS continued, max(now) AS now
    FROM moved;
END $$;
