-- exchange, where nothing is to be done but to finish and to claim: both, and the whole transaction, in one statement.
-- The first row says what became of the finishes, if there are any; the others are what was claimed.
-- Each step takes the worker from the one before it: whatever is planned, none begins before that one is done.
WITH shared AS MATERIALIZED (  -- nobody changes the bounds of these stages meanwhile
  SELECT CAST(:worker AS text) AS worker, count(pg_advisory_xact_lock_shared(:class, s.key)) AS stages
    FROM unnest(CAST(CAST(:locks AS text) AS integer[])) AS s (key)),
finished AS MATERIALIZED (
  SELECT f.kept, f.continued, f.now,
         (SELECT count(pg_notify('onceflow', :sender))  -- others may find something to do
           WHERE :tell OR CAST(:ready AS bigint) > coalesce(cardinality(f.continued), 0)) AS told
    FROM shared CROSS JOIN LATERAL finish_attempts(
           shared.worker, :now, CAST(CAST(:items AS text) AS bigint[]), CAST(CAST(:fences AS text) AS bigint[]), :bodies,
           CAST(CAST(:shapes AS text) AS integer[]), :stages, :used, :claimed, :next_stages, :phases, :attempts, :lanes,
           :delays, :errors, :codes, :events, :kinds, :datas, :pipelines, :runs, :nothings, :tokens,
           CAST(CAST(:costs AS text) AS double precision[])) AS f
   WHERE :ended),
next AS MATERIALIZED (SELECT worker FROM shared WHERE (SELECT count(*) FROM finished) >= 0)
SELECT kept, continued, now AS ended_at, NULL AS wish, NULL AS bounded, NULL AS room, NULL AS runs, NULL AS now,
       NULL AS more, NULL AS contested, NULL AS id, NULL AS key, NULL AS fence, NULL AS attempt, NULL AS generation,
       NULL AS run, NULL AS depth, NULL AS priority, NULL AS body
  FROM finished
UNION ALL
SELECT NULL, NULL, NULL, w.place, c.*
  FROM next
 CROSS JOIN unnest(CAST(:of_pipelines AS text[]), CAST(:of_stages AS text[]), CAST(:befores AS text[]),
                   CAST(CAST(:counts AS text) AS bigint[]), CAST(CAST(:turns AS text) AS bigint[]))
            WITH ORDINALITY AS w (pipeline, stage, before, count, turn, place)
 CROSS JOIN LATERAL claim_ready(
         w.pipeline, w.stage, w.before, w.count, w.turn, next.worker, false, true, :runs_max, :now) AS c
