-- which keys are other items', as their own or as aliases.
SELECT w.place
  FROM unnest(CAST(:places AS bigint[]), CAST(:pipelines AS text[]), CAST(:keys AS text[]), CAST(:items AS bigint[]))
       AS w (place, pipeline, key, item)
 WHERE (SELECT a.item FROM alias AS a WHERE a.pipeline = w.pipeline AND a.short_key = shorten(w.key)) <> w.item
