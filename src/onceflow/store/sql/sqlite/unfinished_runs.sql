-- a page of the runs that are not over, and of those the caller has reason to ask about.
SELECT id, pipeline, sealed, gate, gate_stage, witness, settled_at, gate_item FROM run
 WHERE finished_at IS NULL
   AND (id IN (SELECT value FROM json_each(:ids))
        OR id IN (SELECT id FROM run WHERE finished_at IS NULL AND id > :after ORDER BY id LIMIT :most))
 ORDER BY id
