-- a start in a lane: the next one not before the spacing is over.
INSERT INTO lane (pipeline, stage, lane, next_at) VALUES (:pipeline, :stage, :lane, :next_at)
ON CONFLICT (pipeline, stage, lane) DO UPDATE SET next_at = excluded.next_at
