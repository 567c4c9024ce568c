-- when the next waiting item is due.
SELECT min(due_at) FROM item WHERE phase = 'waiting' AND due_at IS NOT NULL
