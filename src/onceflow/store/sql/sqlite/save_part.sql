-- a piece of an attempt's work, if its lease still holds; nothing where this lease has kept it before.
INSERT INTO part (item, stage, name, generation, fence, at, body)
SELECT id, stage, :name, generation, fence, :now, :body FROM item
 WHERE id = :item AND (fence, ticket) = (:fence, :ticket) AND phase = 'active'
ON CONFLICT (item, stage, name) DO UPDATE
   SET generation = excluded.generation, fence = excluded.fence, at = excluded.at, body = excluded.body
 WHERE part.fence < excluded.fence
