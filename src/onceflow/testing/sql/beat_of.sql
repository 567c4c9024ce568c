-- a worker's last heartbeat.
SELECT beat_at FROM worker WHERE id = :worker
