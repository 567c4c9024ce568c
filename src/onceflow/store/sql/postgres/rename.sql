-- items get the keys that are their own, in the order of the keys; what were their aliases are none any more.
WITH named AS MATERIALIZED (
  SELECT * FROM unnest(CAST(:pipelines AS text[]), CAST(:keys AS text[]), CAST(:items AS bigint[]))
         AS n (pipeline, key, item) ORDER BY n.pipeline, n.key),
freed AS (
  DELETE FROM alias AS a USING named AS n
   WHERE a.pipeline = n.pipeline AND a.short_key = shorten(n.key) AND a.item = n.item)
UPDATE item SET key = n.key, short_key = shorten(n.key) FROM named AS n WHERE item.id = n.item
