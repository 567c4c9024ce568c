-- other keys of items; a key that is an item of its own, or an alias already, stays that.
INSERT INTO alias (pipeline, key, item, short_key)
SELECT a.pipeline, a.key, a.item, shorten(a.key)
  FROM unnest(CAST(:pipelines AS text[]), CAST(:keys AS text[]), CAST(:items AS bigint[]))
       AS a (pipeline, key, item)
ON CONFLICT DO NOTHING
