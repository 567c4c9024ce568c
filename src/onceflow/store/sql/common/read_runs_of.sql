-- the runs an item belongs to.
SELECT run FROM member WHERE item = :item ORDER BY run
