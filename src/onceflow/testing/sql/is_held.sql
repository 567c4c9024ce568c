-- whether an item waits for somebody to trigger its stage.
SELECT phase = 'waiting' AND due_at IS NULL FROM item WHERE id = :item
