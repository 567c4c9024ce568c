-- renew: the deadline of a lease moves on, and its text so far is kept, if the lease still holds.
-- The text's epoch is the fence.
WITH held AS (
  UPDATE item SET deadline = clock_ms(:now) + (
           SELECT s.deadline_ms + s.lease_ms FROM stage AS s
            WHERE s.pipeline = item.pipeline AND s.stage = item.stage)
   WHERE id = :item AND fence = :fence AND ticket = :ticket AND phase = 'active'
  RETURNING id, fence),
kept AS (
  INSERT INTO partial (item, fence, text)
  SELECT id, fence, CAST(:text AS text) FROM held WHERE CAST(:text AS text) IS NOT NULL
  ON CONFLICT (item) DO UPDATE SET fence = excluded.fence, text = excluded.text)
SELECT id FROM held
