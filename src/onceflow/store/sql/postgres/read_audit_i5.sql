-- I5 every accepted key exists exactly once, begins its history once, and runs count right. (The keys have
-- a table of their own here; SQLite's items have a unique index.)
SELECT i.id AS item, i.key, 'the item has no first event' AS detail
  FROM item AS i
 WHERE NOT EXISTS (SELECT 1 FROM event AS e WHERE e.item = i.id AND e.n = 1)
   AND NOT (i.phase IN ('done', 'failed', 'cancelled')
            AND EXISTS (SELECT 1 FROM event AS e WHERE e.item = i.id AND e.n = i.version))
UNION ALL
SELECT i.id, i.key, 'the item belongs to no run'
  FROM item AS i
 WHERE NOT EXISTS (SELECT 1 FROM member AS m WHERE m.item = i.id)
   AND NOT EXISTS (SELECT 1 FROM run AS r WHERE r.gate_item = i.id)
UNION ALL
SELECT CAST(NULL AS bigint), r.id, 'the run accepted ' || r.accepted || ' items but has '
       || (SELECT count(*) FROM member AS m WHERE m.run = r.id)
  FROM run AS r WHERE r.accepted <> (SELECT count(*) FROM member AS m WHERE m.run = r.id)
UNION ALL
SELECT CAST(NULL AS bigint), r.id, 'the run has ' || r.accepted || ' items, at most ' || r.max_items
  FROM run AS r WHERE r.accepted > r.max_items
UNION ALL
SELECT i.id, i.key, 'its key belongs to ' || coalesce('item ' || (
         SELECT a.item FROM alias AS a WHERE a.pipeline = i.pipeline AND a.short_key = shorten(i.key)), 'nobody')
  FROM item AS i
 WHERE (SELECT a.item FROM alias AS a WHERE a.pipeline = i.pipeline AND a.short_key = shorten(i.key))
       IS DISTINCT FROM i.id
