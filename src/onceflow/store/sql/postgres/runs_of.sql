-- the runs that items belong to, and how deep they are in each.
SELECT item, run, depth FROM member WHERE item = ANY(CAST(:items AS bigint[])) ORDER BY run, item
