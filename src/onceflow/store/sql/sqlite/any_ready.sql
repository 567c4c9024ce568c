-- whether a stage has something ready.
SELECT EXISTS (SELECT 1 FROM item WHERE pipeline = :pipeline AND stage = :stage AND phase = 'ready')
