-- the newest result of one stage of each of these items, a JSON array of ids.
SELECT r.item, r.generation, r.at, r.body
  FROM jsonb_array_elements_text(CAST(CAST(:ids AS text) AS jsonb)) AS w (id)
 CROSS JOIN LATERAL (
   SELECT n.item, n.generation, n.at, n.body FROM result AS n
    WHERE n.item = CAST(w.id AS bigint) AND n.stage = :stage ORDER BY n.generation DESC LIMIT 1) AS r
 ORDER BY r.item
