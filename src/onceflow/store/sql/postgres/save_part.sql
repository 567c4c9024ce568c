-- a piece of an attempt's work, if its lease still holds; nothing where this lease has kept it before.
INSERT INTO part (item, stage, name, generation, fence, at, body)
SELECT id, stage, CAST(:name AS text), generation, fence, clock_ms(:now), CAST(:body AS bytea) FROM item
 WHERE id = :item AND fence = :fence AND ticket = :ticket AND phase = 'active'
ON CONFLICT (item, stage, name) DO UPDATE
   SET generation = excluded.generation, fence = excluded.fence, at = excluded.at, body = excluded.body
 WHERE part.fence < excluded.fence
RETURNING 1
