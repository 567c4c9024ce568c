-- a page of the runs that are not over, and of those the caller has reason to ask about.
WITH page AS MATERIALIZED (
  SELECT id FROM run WHERE finished_at IS NULL AND id > :after ORDER BY id LIMIT :most)
SELECT id, pipeline, sealed, gate, gate_stage, witness, settled_at, id IN (SELECT id FROM page) FROM run
 WHERE finished_at IS NULL
   AND (id IN (SELECT value FROM json_each(:ids)) OR id IN (SELECT id FROM page))
 ORDER BY id
