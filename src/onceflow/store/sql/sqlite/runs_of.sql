-- the runs an item belongs to, and how deep it is in each.
SELECT run, depth FROM member WHERE item = :item ORDER BY run
