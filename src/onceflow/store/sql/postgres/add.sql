-- add: nothing -> (first stage, ready | waiting), and claim along with it (functions.sql): the whole transaction, in one
-- statement. The first row says whether it could be done, the others are what was claimed.
WITH shared AS MATERIALIZED (  -- nobody changes the bounds of these stages meanwhile
  SELECT CAST(:worker AS text) AS worker, hold_history() AS history, (
           SELECT set_config('synchronous_commit', 'on', true)
            WHERE current_setting('synchronous_commit') NOT IN ('on', 'remote_apply')) AS durable,
         (SELECT count(pg_advisory_xact_lock_shared(:class, s.key))
            FROM unnest(CAST(CAST(:locks AS text) AS integer[])) AS s (key)) AS stages),
added AS MATERIALIZED (
  SELECT shared.worker, add_new(
           :run, :pipeline, :seal, :max_items, :max_depth, :max_tokens, :max_cost, :gate, :gate_stage, :stage, :phase,
           :keys, CAST(CAST(:priorities AS text) AS bigint[]), CAST(CAST(:depths AS text) AS bigint[]), :lanes, :bodies,
           :now) AS done
    FROM shared WHERE shared.stages >= 0),
taken AS MATERIALIZED (
  SELECT w.place, c.*
    FROM (SELECT worker FROM added WHERE done) AS next
   CROSS JOIN unnest(CAST(:of_pipelines AS text[]), CAST(:of_stages AS text[]), CAST(:befores AS text[]),
                     CAST(CAST(:counts AS text) AS bigint[]), CAST(CAST(:turns AS text) AS bigint[]),
                     CAST(:afters AS text[]), CAST(:after_runs AS text[]), CAST(CAST(:prefetched AS text) AS boolean[]))
              WITH ORDINALITY AS w (pipeline, stage, before, count, turn, after, after_run, prefetched, place)
   CROSS JOIN LATERAL claim(
           w.pipeline, w.stage, w.before, w.count, w.turn, w.after, w.after_run, NULL, w.prefetched, next.worker, :ticket,
           :runs_max, :lanes_max, :deaths_max, :now) AS c)
SELECT added.done, (SELECT count(pg_notify('onceflow', :sender))  -- what nobody claimed along with it is for others
                     WHERE added.done AND (SELECT count(*) FROM taken WHERE taken.run = :run) < cardinality(CAST(:keys AS text[]))) AS told,
       NULL AS wish, NULL AS id, NULL AS key, NULL AS fence,
       NULL AS attempt, NULL AS generation, NULL AS run, NULL AS depth, NULL AS priority, NULL AS body, NULL AS now, NULL AS alone,
       NULL AS round,
       NULL AS goes_on_at, NULL AS more, NULL AS opens_in_ms, NULL AS is_full, NULL AS contested
  FROM added
UNION ALL
SELECT NULL, NULL, taken.* FROM taken
