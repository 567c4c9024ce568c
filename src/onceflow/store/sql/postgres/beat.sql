-- a worker lives; whether nobody knew it until now.
INSERT INTO worker AS w (id, host, pid, boot, started_at, beat_at, report)
SELECT :id, :host, :pid, :boot, c.now, c.now, :report FROM (SELECT clock_ms(:now) AS now) AS c
ON CONFLICT (id) DO UPDATE SET beat_at = excluded.beat_at, report = coalesce(excluded.report, w.report)
RETURNING w.started_at = w.beat_at AS fresh
