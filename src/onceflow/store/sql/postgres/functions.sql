-- Claim and finish, add and begin: the statements that every item goes through, as functions of the schema. Each is
-- one word to the server, in which every statement sees what was committed before it got its locks; in one large
-- statement, none would.
--
-- A database gets them anew by the first program that has them otherwise (`meta` says which it has). Who changes what
-- one takes or gives drops the old one in a migration.
--
-- A worker that nobody knows gets nothing: it has signed off, and somebody else's lock kept its last word waiting on
-- the server until then.

-- The history is read in the order of its numbers. A sequence is not the order of the commits: a transaction may commit
-- a number when higher ones are there already. So whoever writes events takes a shared lock first, named by the last
-- number given out until then; all that it gets are higher. What no such lock is below is settled. It counts who has
-- these locks in this database, not which transactions are open: strangers hold up nobody.
CREATE OR REPLACE FUNCTION hold_history() RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
  last bigint;
BEGIN
  SELECT CASE WHEN is_called THEN last_value ELSE last_value - 1 END INTO last FROM onceflow.event_seq_seq;
  PERFORM pg_advisory_xact_lock_shared((CAST(20302 AS bigint) << 48) | last);
  RETURN last;
END $$;

-- settled: up to which number every event is there, or never will be. The last number is read before the locks are: who
-- got one of those up to there had its lock already. A statement after this one sees what those have committed whose
-- locks are gone.
CREATE OR REPLACE FUNCTION settled() RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
  last bigint;
  held bigint;
BEGIN
  SELECT CASE WHEN is_called THEN last_value ELSE last_value - 1 END INTO last FROM event_seq_seq;
  SELECT min(((CAST(l.classid AS bigint) & 65535) << 32) | CAST(l.objid AS bigint)) INTO held
    FROM pg_locks AS l
   WHERE l.locktype = 'advisory' AND l.objsubid = 1 AND CAST(l.classid AS bigint) >> 16 = 20302
     AND l.database = (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database());
  RETURN least(last, held);
END $$;

-- claim: (stage, ready) -> (stage, active), or one item by its name: (stage, ready | waiting, held) -> (stage, active).
-- The fence moves on: an older lease can finish nothing.
--
-- There are three ways to look for whose turn it is: by name, in lanes, or else by runs, which have equal shares; what
-- some of them leave over is given to the others in another pass. A stage with bounds is locked before its leases are
-- counted, and stays so until the commit; the caller holds the advisory lock that keeps bounds as they are.
--
-- Gives a row for each lease, and one more without an item, which says how it went. No row: nobody knows the stage.
CREATE OR REPLACE FUNCTION claim(
  of_pipeline text, of_stage text, stage_before text, wanted bigint, whose_turn bigint, after text, after_run text, named bigint,
  prefetched boolean, by_worker text, its_ticket bigint, runs_most bigint, lanes_most bigint, deaths_most bigint,
  fake bigint
) RETURNS TABLE (
  id bigint, key text, fence bigint, attempt bigint, generation bigint, run text, depth bigint, priority bigint,
  body bytea, now bigint, alone boolean, round bigint, goes_on_at text, more boolean, opens_in_ms bigint, is_full boolean, contested bigint
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  passes_most CONSTANT integer := 10;
  place stage%ROWTYPE;
  at_time bigint;
  most bigint;
  room bigint := wanted;
  given bigint := 0;
  passes integer := 0;
  picks bigint[];
  stand text COLLATE "C" := after;
  run_stand text COLLATE "C" := after_run;
  is_more boolean := false;
  opens_in bigint;
  lost bigint := 0;
  look record;
BEGIN
  SELECT s.* INTO place FROM stage AS s WHERE s.pipeline = of_pipeline AND s.stage = of_stage;
  IF NOT FOUND THEN
    RETURN;
  END IF;
  IF coalesce(place.chosen_limit, place.declared_limit, place.lane_limit) IS NOT NULL THEN
    SELECT s.* INTO place FROM stage AS s WHERE s.pipeline = of_pipeline AND s.stage = of_stage FOR UPDATE;
  END IF;
  at_time := clock_ms(fake);
  most := coalesce(place.chosen_limit, place.declared_limit);
  IF most IS NOT NULL THEN
    SELECT least(wanted, most - count(*)) INTO room FROM item AS i
     WHERE i.pipeline = of_pipeline AND i.stage = of_stage AND i.phase = 'active';
  END IF;

  IF place.paused_at IS NULL AND EXISTS (SELECT 1 FROM worker AS w WHERE w.id = by_worker) THEN
    WHILE given < room LOOP
      IF named IS NOT NULL THEN
        SELECT array_agg(p.id) AS ids INTO look
          FROM (SELECT i.id FROM item AS i
                 WHERE i.id = named AND i.pipeline = of_pipeline AND i.stage = of_stage
                   AND (i.phase = 'ready' OR i.phase = 'waiting' AND i.due_at IS NULL)
                   AND (place.lane_limit IS NULL
                        OR (SELECT count(*) FROM item AS a
                             WHERE a.pipeline = of_pipeline AND a.stage = of_stage AND a.phase = 'active'
                               AND a.lane = i.lane) < place.lane_limit
                           AND coalesce((SELECT l.next_at FROM lane AS l
                                          WHERE l.pipeline = of_pipeline AND l.stage = of_stage AND l.lane = i.lane),
                                        0) <= at_time)
                   FOR UPDATE OF i) AS p;
        picks := look.ids;
        SELECT EXISTS (SELECT 1 FROM item AS i
                        WHERE i.pipeline = of_pipeline AND i.stage = of_stage AND i.phase = 'ready' AND i.id <> named)
          INTO is_more;

      ELSIF place.lane_limit IS NOT NULL THEN
        -- A round through the open lanes, one item of each, from where the last claim stopped. Each step of the walk
        -- costs a few index steps, however full a lane is.
        WITH RECURSIVE walk (step, at, wrapped, ended, lane, run, many, spare, opens_at, served) AS (
          SELECT 0, stand COLLATE "C", stand = '', false, CAST(NULL AS text) COLLATE "C",
                 CAST(NULL AS text) COLLATE "C", false, false, CAST(NULL AS bigint), CAST(0 AS bigint)
          UNION ALL
          SELECT w.step + 1,
                 CASE WHEN stop.here THEN '' ELSE n.lane END,
                 w.wrapped OR stop.here,
                 stop.here AND w.wrapped,
                 CASE WHEN NOT stop.here THEN n.lane END,
                 chosen.run,
                 coalesce(chosen.many, false),
                 state.active + 1 < place.lane_limit AND place.lane_spacing_ms = 0,
                 state.next_at,
                 w.served + CASE WHEN chosen.run IS NULL THEN 0 ELSE 1 END
            FROM walk AS w
           CROSS JOIN LATERAL (
             SELECT (SELECT i.lane FROM item AS i
                      WHERE i.pipeline = of_pipeline AND i.stage = of_stage AND i.phase = 'ready' AND i.lane > w.at
                      ORDER BY i.lane LIMIT 1) AS lane OFFSET 0) AS n  -- OFFSET 0: looked up once a step
           CROSS JOIN LATERAL (
             SELECT n.lane IS NULL OR w.wrapped AND stand <> '' AND n.lane > stand COLLATE "C" AS here) AS stop
            LEFT JOIN LATERAL (
             SELECT (SELECT count(*) FROM item AS a
                      WHERE a.pipeline = of_pipeline AND a.stage = of_stage AND a.phase = 'active'
                        AND a.lane = n.lane) AS active,
                    coalesce((SELECT l.next_at FROM lane AS l
                               WHERE l.pipeline = of_pipeline AND l.stage = of_stage AND l.lane = n.lane), 0) AS next_at
              WHERE NOT stop.here OFFSET 0) AS state ON true
            LEFT JOIN LATERAL (
             WITH RECURSIVE ahead (run) AS (
               SELECT (SELECT i.run FROM item AS i
                        WHERE i.pipeline = of_pipeline AND i.stage = of_stage AND i.phase = 'ready' AND i.lane = n.lane
                          AND i.run > run_stand
                        ORDER BY i.run LIMIT 1)
               UNION ALL
               SELECT (SELECT i.run FROM item AS i
                        WHERE i.pipeline = of_pipeline AND i.stage = of_stage AND i.phase = 'ready' AND i.lane = n.lane
                          AND i.run > ahead.run
                        ORDER BY i.run LIMIT 1)
                 FROM ahead WHERE ahead.run IS NOT NULL),
             behind (run) AS (
               SELECT CASE WHEN run_stand <> '' THEN (
                        SELECT i.run FROM item AS i
                         WHERE i.pipeline = of_pipeline AND i.stage = of_stage AND i.phase = 'ready' AND i.lane = n.lane
                         ORDER BY i.run LIMIT 1) END
               UNION ALL
               SELECT (SELECT i.run FROM item AS i
                        WHERE i.pipeline = of_pipeline AND i.stage = of_stage AND i.phase = 'ready' AND i.lane = n.lane
                          AND i.run > behind.run
                        ORDER BY i.run LIMIT 1)
                 FROM behind WHERE behind.run < run_stand)
             SELECT t.run, t.total = runs_most AS many
               FROM (SELECT run, row_number() OVER (ORDER BY part, run) AS number, count(*) OVER () AS total
                       FROM ((SELECT run, 0 AS part FROM ahead
                               WHERE run IS NOT NULL AND (SELECT r.halted IS NULL FROM run AS r WHERE r.id = ahead.run)
                               LIMIT runs_most)
                             UNION ALL
                             (SELECT run, 1 FROM behind
                               WHERE run <= run_stand AND (SELECT r.halted IS NULL FROM run AS r WHERE r.id = behind.run)
                               LIMIT runs_most)
                             ORDER BY part, run LIMIT runs_most) AS going) AS t
              WHERE t.number - 1 = CASE WHEN t.total = runs_most THEN 0 ELSE (whose_turn + given) % t.total END
                AND state.active < place.lane_limit AND state.next_at <= at_time) AS chosen ON true
           WHERE w.step < lanes_most AND w.served < room - given AND NOT w.ended),
        walked AS MATERIALIZED (SELECT * FROM walk WHERE step > 0),
        picked AS MATERIALIZED (
          SELECT p.id, w.spare
            FROM walked AS w
           CROSS JOIN LATERAL (
             SELECT i.id FROM item AS i
              WHERE i.pipeline = of_pipeline AND i.stage = of_stage AND i.phase = 'ready'
                AND i.lane = w.lane AND i.run = w.run
              ORDER BY i.priority, i.depth, i.id LIMIT 1 FOR UPDATE SKIP LOCKED) AS p
           WHERE w.run IS NOT NULL)
        SELECT (SELECT array_agg(p.id) FROM picked AS p) AS ids,
               (SELECT at FROM walked ORDER BY step DESC LIMIT 1) AS at,
               (SELECT ended FROM walked ORDER BY step DESC LIMIT 1) AS ended,
               (SELECT lane FROM walked WHERE run IS NOT NULL ORDER BY step DESC LIMIT 1) AS served,
               (SELECT run FROM walked WHERE many ORDER BY step DESC LIMIT 1) AS run,
               coalesce((SELECT bool_or(p.spare) FROM picked AS p), false) AS spare,
               least((SELECT min(w.opens_at) FROM walked AS w WHERE w.run IS NULL AND w.opens_at > at_time) - at_time,
                     CASE WHEN place.lane_spacing_ms > 0 AND EXISTS (SELECT 1 FROM picked)
                          THEN place.lane_spacing_ms END) AS opens_in_ms
          INTO look;
        picks := look.ids;
        run_stand := coalesce(look.run, '');
        opens_in := least(opens_in, look.opens_in_ms);
        -- At the end of the round asking again gives more only where a lane has a place left. A walk that was cut
        -- short goes on next time.
        stand := CASE WHEN look.ended THEN coalesce(look.served, stand) ELSE look.at END;
        is_more := CASE WHEN look.ended THEN look.spare ELSE true END;

      ELSE
        WITH RECURSIVE ahead (run) AS (  -- the runs that have something ready, one index step each, from where we stand
          SELECT (SELECT i.run FROM item AS i
                   WHERE i.pipeline = of_pipeline AND i.stage = of_stage AND i.phase = 'ready' AND i.lane = ''
                     AND i.run > run_stand
                   ORDER BY i.run LIMIT 1)
          UNION ALL
          SELECT (SELECT i.run FROM item AS i
                   WHERE i.pipeline = of_pipeline AND i.stage = of_stage AND i.phase = 'ready' AND i.lane = ''
                     AND i.run > ahead.run
                   ORDER BY i.run LIMIT 1)
            FROM ahead WHERE ahead.run IS NOT NULL),
        behind (run) AS (
          SELECT CASE WHEN run_stand <> '' THEN (
                   SELECT i.run FROM item AS i
                    WHERE i.pipeline = of_pipeline AND i.stage = of_stage AND i.phase = 'ready' AND i.lane = ''
                    ORDER BY i.run LIMIT 1) END
          UNION ALL
          SELECT (SELECT i.run FROM item AS i
                   WHERE i.pipeline = of_pipeline AND i.stage = of_stage AND i.phase = 'ready' AND i.lane = ''
                     AND i.run > behind.run
                   ORDER BY i.run LIMIT 1)
            FROM behind WHERE behind.run < run_stand),
        runs AS MATERIALIZED (  -- where there are too many, the next claim goes on behind the last one served
          SELECT t.run, t.total,
                 CASE WHEN t.total = runs_most THEN t.number - 1
                      ELSE (t.number - 1 - (whose_turn + passes) % t.total + t.total) % t.total END AS place
            FROM (SELECT run, row_number() OVER (ORDER BY part, run) AS number, count(*) OVER () AS total
                    FROM ((SELECT run, 0 AS part FROM ahead
                            WHERE run IS NOT NULL AND (SELECT r.halted IS NULL FROM run AS r WHERE r.id = ahead.run)
                            LIMIT runs_most)
                          UNION ALL
                          (SELECT run, 1 FROM behind
                            WHERE run <= run_stand AND (SELECT r.halted IS NULL FROM run AS r WHERE r.id = behind.run)
                            LIMIT runs_most)
                          ORDER BY part, run LIMIT runs_most) AS going) AS t),
        shares AS MATERIALIZED (
          SELECT r.run, greatest(1, (room - given) / r.total) AS share
            FROM runs AS r WHERE r.place < room - given ORDER BY r.place),
        picked AS MATERIALIZED (  -- a bare IN (... LIMIT) may be run again by the planner and take too many
          SELECT p.id, p.priority, p.depth, r.run
            FROM shares AS r
           CROSS JOIN LATERAL (
             SELECT i.id, i.priority, i.depth FROM item AS i
              WHERE i.pipeline = of_pipeline AND i.stage = of_stage
                AND i.phase = 'ready'  -- no clock here: what is not due yet is waiting
                AND i.lane = '' AND i.run = r.run
              ORDER BY i.priority, i.depth, i.id LIMIT r.share FOR UPDATE SKIP LOCKED) AS p)
        SELECT (SELECT array_agg(p.id) FROM picked AS p) AS ids,
               (SELECT count(*) FROM runs) AS runs,
               (SELECT r.run FROM runs AS r
                 WHERE r.total = runs_most AND r.place < room - given ORDER BY r.place DESC LIMIT 1) AS run,
               (SELECT count(*) > wanted - given  -- one entry further than what is taken
                  FROM (SELECT 1 FROM item AS i
                         WHERE i.pipeline = of_pipeline AND i.stage = of_stage AND i.phase = 'ready'
                         LIMIT wanted - given + 1) AS ready) AS more,
               (SELECT coalesce(sum(line.seen - (  -- first in line as this statement sees it, but not picked
                         SELECT count(*) FROM picked AS p
                          WHERE p.run = r.run AND ARRAY[p.priority, p.depth, p.id] <= line.last)), 0)::bigint
                  FROM shares AS r
                 CROSS JOIN LATERAL (
                   SELECT count(*) AS seen, max(ARRAY[f.priority, f.depth, f.id]) AS last
                     FROM (SELECT i.priority, i.depth, i.id FROM item AS i
                            WHERE i.pipeline = of_pipeline AND i.stage = of_stage
                              AND i.phase = 'ready' AND i.lane = '' AND i.run = r.run
                            ORDER BY i.priority, i.depth, i.id LIMIT r.share) AS f) AS line) AS contested
          INTO look;
        picks := look.ids;
        run_stand := coalesce(look.run, '');
        is_more := look.more;
        lost := lost + look.contested;
      END IF;

      EXIT WHEN picks IS NULL;
      RETURN QUERY
      WITH claimed AS (
        UPDATE item
           SET phase = 'active', fence = fence + 1, attempt = attempt + 1, version = version + 1, ticket = its_ticket,
               begun = CASE WHEN prefetched OR deaths >= deaths_most THEN 0 ELSE 1 END, worker = by_worker, claimed_at = at_time,
               deadline = at_time + place.deadline_ms + place.lease_ms, updated_at = at_time
         WHERE item.id = ANY (picks)
        RETURNING item.id, item.key, item.fence, item.attempt, item.generation, item.run, item.depth, item.priority,
                  item.version, item.lane, item.deaths),
      logged AS (
        INSERT INTO event (at, kind, item, n, run, stage, phase, generation, fence, attempt, worker, data)
        SELECT at_time, 'claimed', id, version, run, of_stage, 'active', generation, fence, attempt, by_worker,
               '{"limit": ' || most || '}'
          FROM claimed ORDER BY priority, depth, id),
      spaced AS (
        INSERT INTO lane (pipeline, stage, lane, next_at)
        SELECT of_pipeline, of_stage, c.lane, at_time + place.lane_spacing_ms
          FROM claimed AS c WHERE place.lane_limit IS NOT NULL AND place.lane_spacing_ms > 0
        ON CONFLICT (pipeline, stage, lane) DO UPDATE SET next_at = excluded.next_at)
      SELECT c.id, c.key, c.fence, c.attempt, c.generation, c.run, c.depth, c.priority,
             (SELECT r.body FROM result AS r WHERE r.item = c.id AND r.stage = stage_before
               ORDER BY r.generation DESC LIMIT 1),
             at_time, c.deaths >= deaths_most, CASE WHEN place.lane_limit IS NULL THEN 0 ELSE passes END::bigint, NULL::text, NULL::boolean, NULL::bigint, NULL::boolean, NULL::bigint
        FROM claimed AS c ORDER BY c.priority, c.depth, c.id;
      given := given + cardinality(picks);
      passes := passes + 1;
      EXIT WHEN named IS NOT NULL;
      IF place.lane_limit IS NOT NULL THEN
        EXIT WHEN NOT look.ended OR NOT look.spare;
      ELSE
        EXIT WHEN look.runs = 1 OR passes = passes_most;
      END IF;
    END LOOP;
  END IF;

  RETURN QUERY
  SELECT NULL::bigint, NULL::text, NULL::bigint, NULL::bigint, NULL::bigint, run_stand, NULL::bigint, NULL::bigint,
         NULL::bytea, at_time, NULL::boolean, NULL::bigint, stand,
         is_more AND CASE WHEN place.lane_limit IS NULL OR named IS NOT NULL THEN given = wanted
                          ELSE given < room OR room = wanted END,
         opens_in, place.paused_at IS NULL AND most IS NOT NULL AND room < wanted AND given >= room, lost;
END $$;

-- begin: what was prefetched begins now, and its deadline counts from here. Asked again after a lost reply, it is true
-- again.
CREATE OR REPLACE FUNCTION begin_leases(items bigint[], fences bigint[], tickets bigint[], fake bigint)
RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE
  places bigint[];
BEGIN
  IF cardinality(items) = 0 THEN
    RETURN '{}';
  END IF;
  WITH wish AS MATERIALIZED (
    SELECT * FROM unnest(items, fences, tickets) WITH ORDINALITY AS w (item, fence, ticket, place)),
  begun AS (
    UPDATE item
       SET begun = 1, deadline = clock_ms(fake) + (
             SELECT s.deadline_ms + s.lease_ms FROM stage AS s
              WHERE s.pipeline = item.pipeline AND s.stage = item.stage)
      FROM wish AS w
     WHERE item.id = w.item AND item.fence = w.fence AND item.ticket = w.ticket
       AND item.phase || '' = 'active'  -- || '': by the items' ids, never by way of all active ones
    RETURNING w.place)
  SELECT array_agg(place) INTO places FROM begun;
  RETURN places;
END $$;

-- finish: (stage, active) -> (next stage, ready | waiting), (stage, waiting), done or failed; or at once
-- (next stage, active) for the same worker, where that was asked for and nothing bounds the next stage.
-- Only with the current fence and ticket: a lease that was lost changes nothing. One result per stage and generation.
CREATE OR REPLACE FUNCTION finish(
  by_worker text, its_ticket bigint, fake bigint, items bigint[], fences bigint[], tickets bigint[], bodies bytea[],
  of_shapes integer[], all_stages text[], all_used bigint[], all_claimed bigint[], all_next_stages text[],
  all_phases text[], all_attempts bigint[], all_lanes text[], all_delays bigint[], all_errors text[],
  all_codes text[], all_events bigint[], all_kinds text[], all_datas text[], all_pipelines text[], all_runs text[],
  all_nothings bytea[], all_tokens bigint[], all_costs double precision[]
) RETURNS TABLE (kept bigint[], continued bigint[], now bigint) LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
  IF cardinality(items) = 0 THEN
    RETURN QUERY SELECT NULL::bigint[], NULL::bigint[], NULL::bigint;
    RETURN;
  END IF;
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
    SELECT w.place, w.item, w.fence, w.ticket, coalesce(w.body, all_nothings[w.shape]) AS body,
           all_stages[w.shape] AS stage, all_next_stages[w.shape] AS next_stage,
           all_phases[w.shape] AS phase, all_attempts[w.shape] AS attempt,
           all_used[w.shape] AS used, all_lanes[w.shape] AS lane,
           all_delays[w.shape] AS delay, all_errors[w.shape] AS error,
           all_codes[w.shape] AS code, all_claimed[w.shape] AS claimed_at,
           all_events[w.shape] AS events, all_kinds[w.shape] AS kind,
           all_datas[w.shape] AS data, shape.lease_ms[w.shape] AS lease_ms,
           CASE WHEN shape.lease_ms[w.shape] IS NULL THEN 0 ELSE 1 END AS again
      FROM shape CROSS JOIN (
             SELECT item, fence, ticket, body, coalesce(shape, 1) AS shape, place
               FROM unnest(items, fences, tickets, bodies, of_shapes)
                    WITH ORDINALITY AS u (item, fence, ticket, body, shape, place) OFFSET 0) AS w),
  clock AS MATERIALIZED (SELECT clock_ms(fake) AS now),
  moved AS (
    UPDATE item
       SET stage = w.next_stage, phase = CASE w.again WHEN 1 THEN 'active' ELSE w.phase END,
           attempt = w.attempt + w.again, fence = item.fence + w.again, lane = w.lane,
           deaths = CASE WHEN w.next_stage = w.stage THEN item.deaths ELSE 0 END, begun = w.again,
           ticket = CASE w.again WHEN 1 THEN its_ticket ELSE item.ticket END,
           due_at = c.now + w.delay, error = w.error, error_code = w.code,
           version = item.version + w.events + w.again, worker = CASE w.again WHEN 1 THEN by_worker END,
           claimed_at = CASE w.again WHEN 1 THEN c.now END, deadline = c.now + w.lease_ms, updated_at = c.now
      FROM wish AS w CROSS JOIN clock AS c
     WHERE item.id = w.item
       AND item.fence = w.fence AND item.ticket = w.ticket AND item.stage = w.stage
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

-- add, the usual case: nothing -> (first stage, ready | waiting). Only new keys into a new run; if it is otherwise, it
-- gives false and has done nothing, or raises `onceflow: known` where somebody else made one of them at this moment.
CREATE OR REPLACE FUNCTION add_new(
  in_run text, of_pipeline text, is_sealed integer, items_most bigint, depth_most bigint, tokens_most bigint,
  cost_most double precision, its_gate text, its_gate_stage text, first_stage text, first_phase text,
  keys text[], priorities bigint[], depths bigint[], lanes text[], bodies bytea[], fake bigint
) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
  at_time bigint := clock_ms(fake);
  made bigint;
BEGIN
  IF EXISTS (SELECT 1 FROM unnest(keys) AS k (key)
              WHERE (SELECT true FROM alias AS a WHERE a.pipeline = of_pipeline AND a.short_key = shorten(k.key))) THEN
    RETURN false;
  END IF;
  INSERT INTO run (id, pipeline, created_at, sealed, accepted, max_items, max_depth, max_tokens, max_cost, gate,
                   gate_stage)
  VALUES (in_run, of_pipeline, at_time, is_sealed, cardinality(keys), items_most, depth_most, tokens_most, cost_most,
          its_gate, its_gate_stage)
  ON CONFLICT (id) DO NOTHING;
  IF NOT FOUND THEN
    RETURN false;
  END IF;

  WITH seed AS MATERIALIZED (  -- ids in the order they came, rows in the order of their keys
    SELECT nextval('item_id_seq') AS id, s.*
      FROM (SELECT w.key, w.priority, w.depth, w.lane, w.body
              FROM unnest(keys, priorities, depths, lanes, bodies)
                   WITH ORDINALITY AS w (key, priority, depth, lane, body, place)
             ORDER BY w.place OFFSET 0) AS s),
  keyed AS (
    INSERT INTO alias (pipeline, short_key, item)
    SELECT of_pipeline, shorten(s.key), s.id FROM seed AS s ORDER BY s.key
    ON CONFLICT (pipeline, short_key) DO NOTHING
    RETURNING item),
  new_item AS (
    INSERT INTO item (id, pipeline, key, stage, phase, run, lane, priority, depth, version, created_at, updated_at)
    SELECT s.id, of_pipeline, s.key, first_stage, first_phase, in_run, s.lane, s.priority, s.depth, 1, at_time, at_time
      FROM seed AS s),
  logged AS (
    INSERT INTO event (at, kind, item, n, run, stage, phase, generation, fence, attempt)
    SELECT at_time, 'added', s.id, 1, in_run, first_stage, first_phase, 1, 0, 0 FROM seed AS s),
  joined AS (
    INSERT INTO member (run, item, since, depth) SELECT in_run, s.id, at_time, s.depth FROM seed AS s),
  stored AS (
    INSERT INTO result (item, stage, generation, at, body)
    SELECT s.id, '', 1, at_time, s.body FROM seed AS s WHERE s.body IS NOT NULL)
  SELECT count(*) INTO made FROM keyed;
  IF made < cardinality(keys) THEN
    RAISE EXCEPTION 'onceflow: known' USING ERRCODE = 'unique_violation';
  END IF;
  RETURN true;
END $$;
