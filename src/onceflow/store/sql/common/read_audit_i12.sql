-- I12 the events of an item are numbered without a gap, and a summary is finished once.
SELECT i.id AS item, i.key, 'it has ' || count(e.n) || ' events numbered ' || coalesce(min(e.n), 0) || ' to '
       || coalesce(max(e.n), 0) || ', and its version is ' || i.version AS detail
  FROM item AS i LEFT JOIN event AS e ON e.item = i.id
 GROUP BY i.id, i.key, i.version
HAVING count(e.n) = 0 OR max(e.n) <> i.version OR count(e.n) <> max(e.n) - min(e.n) + 1
UNION ALL
SELECT e.item, i.key, 'summary_finished ' || count(*) || ' times in generation ' || e.generation
  FROM event AS e JOIN item AS i ON i.id = e.item
 WHERE e.kind = 'summary_finished' GROUP BY e.item, i.key, e.stage, e.generation HAVING count(*) > 1
