-- the runs that items belong to.
SELECT item, run FROM member WHERE item = ANY(CAST(:items AS bigint[])) ORDER BY run, item
