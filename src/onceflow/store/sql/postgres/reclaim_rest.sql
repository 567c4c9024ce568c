-- what is left of the leases of workers of which some were reclaimed: it was not alone there, though it may be by the
-- time it is reclaimed.
WITH free AS MATERIALIZED (
  SELECT i.id FROM item AS i
   WHERE i.phase = 'active' AND i.begun = 1 AND i.worker = ANY(CAST(:workers AS text[]))
     FOR UPDATE OF i SKIP LOCKED)
UPDATE item SET begun = 2 FROM free WHERE item.id = free.id
