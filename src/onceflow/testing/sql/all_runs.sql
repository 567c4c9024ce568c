-- every run with its budget and its gate.
SELECT r.id, r.sealed, r.accepted, r.max_items, r.gate_stage, r.settled_at, r.halted,
       (SELECT count(*) FROM item AS i WHERE i.key = 'gate:' || r.id) AS gate_items,
       (SELECT count(*) FROM event AS e WHERE e.run = r.id AND e.kind = 'gate_opened') AS opened
  FROM run AS r ORDER BY r.id
