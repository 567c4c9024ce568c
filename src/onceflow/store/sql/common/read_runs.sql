-- a page of runs, the newest first.
SELECT r.id, r.pipeline, r.created_at, r.sealed, r.accepted, r.max_items, r.tokens, r.cost, r.halted,
       r.settled_at, r.gate_item, r.finished_at,
       (SELECT count(*) FROM member AS m JOIN item AS i ON i.id = m.item
         WHERE m.run = r.id AND i.phase IN ('waiting', 'ready', 'active')) AS open_items,
       (SELECT count(*) FROM member AS m JOIN item AS i ON i.id = m.item
         WHERE m.run = r.id AND i.phase = 'failed') AS failed_items
  FROM run AS r
 WHERE (CAST(:pipeline AS text) IS NULL OR r.pipeline = :pipeline)
   AND (CAST(:before AS text) IS NULL OR r.id < :before)
 ORDER BY r.id DESC LIMIT :most
