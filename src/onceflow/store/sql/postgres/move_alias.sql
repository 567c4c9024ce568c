-- the other keys of items: those that are no item's own.
SELECT * FROM alias WHERE key IS NOT NULL
