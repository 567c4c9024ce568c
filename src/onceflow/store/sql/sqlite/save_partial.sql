-- the text an attempt has streamed so far, if its lease still holds. Its epoch is the fence.
INSERT INTO partial (item, fence, text)
SELECT id, fence, :text FROM item
 WHERE id = :item AND (fence, ticket) = (:fence, :ticket) AND phase = 'active'
ON CONFLICT (item) DO UPDATE SET fence = excluded.fence, text = excluded.text
