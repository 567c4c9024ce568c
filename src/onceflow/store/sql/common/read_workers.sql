-- the workers, with the age of their last heartbeat and how many leases they hold.
SELECT w.id, w.host, w.pid, w.boot, w.started_at, w.beat_at, w.report,
       (SELECT count(*) FROM item AS i WHERE i.phase = 'active' AND i.worker = w.id) AS leases
  FROM worker AS w ORDER BY w.started_at, w.id
