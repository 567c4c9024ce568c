-- runs that should be over: every item settled as the gate wants it, and the gate's own item too.
SELECT r.id FROM run AS r
 WHERE r.sealed AND r.finished_at IS NULL
   AND NOT EXISTS (
     SELECT 1 FROM member AS m JOIN item AS i ON i.id = m.item
      WHERE m.run = r.id
        AND (i.phase IN ('waiting', 'ready', 'active') OR r.gate = 'completed' AND i.phase <> 'done'))
   AND NOT EXISTS (
     SELECT 1 FROM item AS i
      WHERE i.id = r.gate_item AND (i.phase = 'waiting' AND i.due_at IS NULL
            OR i.phase = 'ready' AND r.halted IS NOT NULL))
