-- a page of the runs that are not over, and of those the caller has reason to ask about: whether the last of its
-- items keeps a gate shut, mostly it does. If not, the first one after the witness that does. None, or no witness
-- yet: it may open, which takes a look at all of them.
WITH asked AS MATERIALIZED (
  SELECT id, bool_or(paged) AS paged
    FROM ((SELECT r.id, true AS paged FROM run AS r
            WHERE r.finished_at IS NULL AND r.id > :after ORDER BY r.id LIMIT :most)
          UNION ALL
          SELECT u.id, false FROM unnest(CAST(:ids AS text[])) AS u (id)) AS every
   GROUP BY id)
SELECT r.id, r.sealed, r.witness, r.settled_at, asked.paged, last.shuts,
       CASE WHEN r.sealed = 1 AND r.settled_at IS NULL AND r.witness > 0 AND last.shuts IS NOT TRUE THEN
         (SELECT m.item FROM member AS m JOIN item AS i ON i.id = m.item
           WHERE m.run = r.id AND m.item > r.witness
             AND (i.phase IN ('waiting', 'ready', 'active') OR r.gate = 'completed' AND i.phase <> 'done')
           ORDER BY m.item LIMIT 1) END AS shut_by
  FROM asked
 CROSS JOIN LATERAL (
   SELECT u.* FROM run AS u WHERE u.id = asked.id AND u.finished_at IS NULL OFFSET 0) AS r
  LEFT JOIN LATERAL (
   SELECT i.phase IN ('waiting', 'ready', 'active') OR r.gate = 'completed' AND i.phase <> 'done' AS shuts
     FROM item AS i
    WHERE i.id = (SELECT m.item FROM member AS m WHERE m.run = r.id ORDER BY m.item DESC LIMIT 1) OFFSET 0) AS last ON true
 ORDER BY r.id
