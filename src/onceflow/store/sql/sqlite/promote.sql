-- promote: (stage, waiting) -> (stage, ready), when it is due. A bounded number at a time.
UPDATE item SET phase = 'ready', due_at = NULL, updated_at = :now
 WHERE id IN (SELECT id FROM item WHERE phase = 'waiting' AND due_at IS NOT NULL AND due_at <= :now
               ORDER BY due_at LIMIT :most)
