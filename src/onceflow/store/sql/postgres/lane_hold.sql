-- lanes give nothing for a while: attempts in them were told to wait. Their stage's row is locked.
INSERT INTO lane (pipeline, stage, lane, next_at)
SELECT :pipeline, :stage, h.lane, clock_ms(:now) + h.ms
  FROM unnest(CAST(:lanes AS text[]), CAST(:ms AS bigint[])) AS h (lane, ms)
ON CONFLICT (pipeline, stage, lane) DO UPDATE SET next_at = greatest(lane.next_at, excluded.next_at)
