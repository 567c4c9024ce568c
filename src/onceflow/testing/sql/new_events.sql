-- what was committed since the last look.
SELECT seq, at, kind, item, n, run, stage, next_stage, phase, generation, fence, attempt, worker, data
  FROM event WHERE seq > :after ORDER BY seq
