-- migration 6: one new key is added by plain statements in one call. That costs the server less than one large statement,
-- and it can say something on the way.

-- add, one new key into a new run, where nothing bounds the stage: nothing -> (first stage, active) for the worker that
-- adds it. Gives the item's number, the time, and a number for the next item; NULL if it is otherwise: nothing was done,
-- go the longer way.
--
-- `number` is one that an earlier call gave for the next item. It is durable by then: a crash of the server cannot give it
-- to another item. So the caller may be told before the commit, by an INFO, which the server sends
-- at once: when nothing is left to do that could be refused, and nobody else can have the key or the run. The server goes
-- on to the commit without the caller. Without a number, nothing is told.
CREATE FUNCTION add_one(
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
     AND NOT EXISTS (SELECT 1 FROM run AS r WHERE r.id = in_run);
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
