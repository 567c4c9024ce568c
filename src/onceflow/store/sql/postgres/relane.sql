-- ready items get the lanes that their stages have now.
WITH free AS MATERIALIZED (
  SELECT i.id, r.lane
    FROM unnest(CAST(:ids AS bigint[]), CAST(:lanes AS text[]), CAST(:stages AS text[])) AS r (id, lane, stage)
    JOIN item AS i ON i.id = r.id
   WHERE i.stage = r.stage AND i.phase || '' = 'ready'  -- || '': by the ids, not by way of all ready ones
   ORDER BY i.id FOR UPDATE OF i SKIP LOCKED)
UPDATE item SET lane = free.lane FROM free WHERE item.id = free.id RETURNING item.id
