-- the first item of each run that keeps its gate shut: a witness that all before it were seen settled.
SELECT r.id, (SELECT m.item FROM member AS m JOIN item AS i ON i.id = m.item
               WHERE m.run = r.id
                 AND (i.phase IN ('waiting', 'ready', 'active') OR r.gate = 'completed' AND i.phase <> 'done')
               ORDER BY m.item LIMIT 1) AS shut_by
  FROM run AS r WHERE r.id = ANY(CAST(:runs AS text[]))
