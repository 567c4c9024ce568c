-- claim, the choice of one item by name: its id if it can be claimed in this stage.
SELECT json_group_array(id) FROM item
 WHERE id = :item AND pipeline = :pipeline AND stage = :stage
   AND (phase = 'ready' OR phase = 'waiting' AND due_at IS NULL)
