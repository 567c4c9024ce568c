-- exchange: finish, begin and claim (functions.sql), and the whole transaction, in one statement.
-- The first row says what became of the finishes and the begins; the others are what was claimed.
-- Each step takes the worker from the one before it: whatever is planned, none begins before that one is done.
WITH shared AS MATERIALIZED (  -- nobody changes the bounds of these stages meanwhile
  SELECT CAST(:worker AS text) AS worker, hold_history() AS history, (
           SELECT set_config('synchronous_commit', 'on', true)
            WHERE current_setting('synchronous_commit') NOT IN ('on', 'remote_apply')) AS durable,
         (SELECT count(pg_advisory_xact_lock_shared(:class, s.key))
            FROM unnest(CAST(CAST(:locks AS text) AS integer[])) AS s (key)) AS stages),
locked AS MATERIALIZED (  -- items that are claimed by name, in the order of their ids; nobody waits for one later on
  SELECT shared.worker, (SELECT count(*) FROM (
           SELECT i.id FROM item AS i
            WHERE i.id = ANY(CAST(CAST(:first AS text) AS bigint[])) AND shared.stages >= 0
            ORDER BY i.id FOR UPDATE) AS i) AS items
    FROM shared),
finished AS MATERIALIZED (
  SELECT f.kept, f.continued, f.now, locked.items,
         (SELECT count(pg_notify('onceflow', :sender))  -- others may find something to do
           WHERE :tell OR CAST(:ready AS bigint) > coalesce(cardinality(f.continued), 0)) AS told
    FROM locked CROSS JOIN LATERAL finish(
           locked.worker, :ticket, :now, CAST(CAST(:items AS text) AS bigint[]), CAST(CAST(:fences AS text) AS bigint[]),
           CAST(CAST(:tickets AS text) AS bigint[]), :bodies,
           CAST(CAST(:shapes AS text) AS integer[]), :stages, :used, :claimed, :next_stages, :phases, :attempts, :lanes,
           :delays, :errors, :codes, :events, :kinds, :datas, :pipelines, :runs, :nothings, :tokens,
           CAST(CAST(:costs AS text) AS double precision[])) AS f),
began AS MATERIALIZED (
  SELECT finished.items, begin_leases(
           CAST(CAST(:begin_items AS text) AS bigint[]), CAST(CAST(:begin_fences AS text) AS bigint[]),
           CAST(CAST(:begin_tickets AS text) AS bigint[]), :now) AS begun
    FROM finished),
next AS MATERIALIZED (SELECT CAST(:worker AS text) AS worker FROM began WHERE began.items >= 0)
SELECT f.kept, f.continued, f.now AS ended_at, b.begun, NULL AS wish, NULL AS id, NULL AS key, NULL AS fence,
       NULL AS attempt, NULL AS generation, NULL AS run, NULL AS depth, NULL AS priority, NULL AS body, NULL AS now, NULL AS alone,
       NULL AS round,
       NULL AS goes_on_at, NULL AS more, NULL AS opens_in_ms, NULL AS is_full, NULL AS contested
  FROM finished AS f CROSS JOIN began AS b
UNION ALL
SELECT NULL, NULL, NULL, NULL, w.place, c.*
  FROM next
 CROSS JOIN unnest(CAST(:of_pipelines AS text[]), CAST(:of_stages AS text[]), CAST(:befores AS text[]),
                   CAST(CAST(:counts AS text) AS bigint[]), CAST(CAST(:turns AS text) AS bigint[]),
                   CAST(:afters AS text[]), CAST(:after_runs AS text[]), CAST(CAST(:named AS text) AS bigint[]),
                   CAST(CAST(:prefetched AS text) AS boolean[]))
            WITH ORDINALITY AS w (pipeline, stage, before, count, turn, after, after_run, named, prefetched, place)
 CROSS JOIN LATERAL claim(
         w.pipeline, w.stage, w.before, w.count, w.turn, w.after, w.after_run, w.named, w.prefetched, next.worker, :ticket,
         :runs_max, :lanes_max, :deaths_max, :now) AS c
