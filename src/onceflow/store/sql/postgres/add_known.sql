-- add, what is there already: the items of these keys or of their aliases, and how deep they are in the run.
-- OFFSET 0 keeps the look-ups one by one: a join might read the whole table.
SELECT k.place, i.id, i.depth,
       (SELECT m.depth FROM member AS m WHERE m.run = :run AND m.item = i.id) AS in_run
  FROM (SELECT w.place,
               (SELECT a.item FROM alias AS a WHERE a.pipeline = :pipeline AND a.short_key = shorten(w.key)) AS item
          FROM unnest(CAST(:keys AS text[])) WITH ORDINALITY AS w (key, place) OFFSET 0) AS k
 CROSS JOIN LATERAL (SELECT o.id, o.depth FROM item AS o WHERE o.id = k.item OFFSET 0) AS i
 ORDER BY k.place
