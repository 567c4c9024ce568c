-- whether a pipeline has any item, by way of the keys.
SELECT EXISTS (SELECT 1 FROM item WHERE pipeline = :pipeline) AS found
