-- items get the keys that are their own, in the order of the keys, unless somebody else has got one meanwhile;
-- their old keys are aliases then.
WITH named AS MATERIALIZED (
  SELECT n.pipeline, n.key, n.item, i.key AS before
    FROM unnest(CAST(:pipelines AS text[]), CAST(:keys AS text[]), CAST(:items AS bigint[]))
         AS n (pipeline, key, item)
    JOIN item AS i ON i.id = n.item),
keyed AS (
  INSERT INTO alias AS a (pipeline, short_key, item)
  SELECT n.pipeline, shorten(n.key), n.item FROM named AS n ORDER BY n.pipeline, n.key
  ON CONFLICT (pipeline, short_key) DO UPDATE SET key = NULL WHERE a.item = excluded.item
  RETURNING item),
kept AS (
  UPDATE alias AS a SET key = n.before FROM named AS n
   WHERE a.pipeline = n.pipeline AND a.short_key = shorten(n.before) AND a.item = n.item)
UPDATE item SET key = n.key FROM named AS n
 WHERE item.id = n.item AND (n.item IN (SELECT keyed.item FROM keyed)) IS TRUE
RETURNING item.id
