-- items by their ids, a JSON array; with the time of the claim where there is one.
SELECT i.id, i.pipeline, i.key, i.stage, i.phase, i.generation, i.attempt, i.depth, i.claimed_at, i.created_at,
       i.updated_at, i.error, i.error_code
  FROM json_each(:ids) AS w JOIN item AS i ON i.id = w.value ORDER BY i.id
