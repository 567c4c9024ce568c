-- the leases that the database says a worker has.
SELECT i.id, i.fence, i.ticket FROM item AS i WHERE i.phase = 'active' AND i.worker = :worker
