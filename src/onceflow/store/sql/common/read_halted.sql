-- the runs that have reached a ceiling and are not over: nothing of them is claimed. The newest first.
SELECT id, pipeline, halted FROM run WHERE halted IS NOT NULL AND finished_at IS NULL ORDER BY id DESC LIMIT 20
