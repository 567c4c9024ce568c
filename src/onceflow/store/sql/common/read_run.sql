-- one run.
SELECT r.id, r.pipeline, r.created_at, r.sealed, r.accepted, r.max_items, r.tokens, r.cost, r.halted,
       r.settled_at, r.gate_item, r.finished_at,
       (SELECT count(*) FROM member AS m JOIN item AS i ON i.id = m.item
         WHERE m.run = r.id AND i.phase IN ('waiting', 'ready', 'active')) AS open_items,
       (SELECT count(*) FROM member AS m JOIN item AS i ON i.id = m.item
         WHERE m.run = r.id AND i.phase = 'failed') AS failed_items
  FROM run AS r WHERE r.id = :id
