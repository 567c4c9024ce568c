-- the failed items by pipeline, stage and code, with one of their messages.
SELECT pipeline, stage, error_code, count(*) AS items, min(updated_at) AS first_at,
       max(updated_at) AS last_at, min(error) AS sample
  FROM item WHERE phase = 'failed'
 GROUP BY pipeline, stage, error_code ORDER BY items DESC, pipeline, stage
