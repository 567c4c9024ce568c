-- a worker stopped.
DELETE FROM worker WHERE id = :worker
