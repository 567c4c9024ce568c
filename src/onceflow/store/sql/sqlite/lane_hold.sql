-- a lane gives nothing for a while: an attempt in it was told to wait.
INSERT INTO lane (pipeline, stage, lane, next_at) VALUES (:pipeline, :stage, :lane, :next_at)
ON CONFLICT (pipeline, stage, lane) DO UPDATE SET next_at = max(next_at, excluded.next_at)
