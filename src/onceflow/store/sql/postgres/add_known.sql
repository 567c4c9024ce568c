-- add, what is there already: the items of these keys or of their aliases, and their place in the run.
SELECT k.place, i.id, i.depth,
       EXISTS (SELECT 1 FROM member AS m WHERE m.run = :run AND m.item = i.id) AS member
  FROM unnest(CAST(:keys AS text[])) WITH ORDINALITY AS k (key, place)
  JOIN item AS i ON i.id = coalesce(
         (SELECT o.id FROM item AS o WHERE o.pipeline = :pipeline AND o.key = k.key),
         (SELECT a.item FROM alias AS a WHERE a.pipeline = :pipeline AND a.key = k.key))
 ORDER BY k.place
