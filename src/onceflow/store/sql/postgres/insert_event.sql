-- the history: one event that belongs to no item, but to a run or a stage.
INSERT INTO event (at, kind, pipeline, run, stage, data)
VALUES (clock_ms(:now), :kind, :pipeline, :run, :stage, :data)
