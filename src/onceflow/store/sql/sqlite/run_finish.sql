-- a run is over: settled, and what its gate added is settled too.
UPDATE run SET finished_at = :now
 WHERE id = :run AND settled_at IS NOT NULL AND finished_at IS NULL
   AND (gate_stage IS NULL OR EXISTS (
     SELECT 1 FROM item WHERE item.id = run.gate_item AND item.phase IN ('done', 'failed', 'cancelled')))
