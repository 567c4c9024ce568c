-- finish: (stage, active) -> (next stage, ready | waiting | active), (stage, waiting), done or failed.
-- What it does is in the database: migration 7.
SELECT kept, continued, now AS ended_at
  FROM finish_attempts(
         :worker, :now, CAST(CAST(:items AS text) AS bigint[]), CAST(CAST(:fences AS text) AS bigint[]), :bodies,
         CAST(CAST(:shapes AS text) AS integer[]), :stages, :used, :claimed, :next_stages, :phases, :attempts, :lanes,
         :delays, :errors, :codes, :events, :kinds, :datas, :pipelines, :runs, :nothings, :tokens,
         CAST(CAST(:costs AS text) AS double precision[]))
