-- a worker lives; whether nobody knew it until now.
INSERT INTO worker (id, host, pid, boot, started_at, beat_at, report)
VALUES (:id, :host, :pid, :boot, :now, :now, :report)
ON CONFLICT (id) DO UPDATE SET beat_at = :now, report = coalesce(:report, report)
RETURNING started_at = beat_at AS fresh
