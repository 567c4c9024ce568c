-- I7 live leases never exceed the limit that held when they were given.
SELECT e.item, i.key, 'claim ' || e.seq || ' made ' || e.live || ' live leases in ' || i.pipeline || '/'
       || e.stage || ', the limit was ' || e.most AS detail
  FROM (SELECT seq, item, stage, data ->> 'limit' AS most, change,
               sum(change) OVER (PARTITION BY pipeline, stage ORDER BY seq) AS live
          FROM (SELECT e.seq, e.item, i.pipeline, e.stage, e.data,
                       CASE WHEN e.kind = 'claimed' THEN 1 ELSE -1 END AS change
                  FROM event AS e JOIN item AS i ON i.id = e.item
                  LEFT JOIN event AS b ON b.item = e.item AND b.n = e.n - 1
                 WHERE e.kind = 'claimed' OR b.phase = 'active' AND e.phase <> 'active')) AS e
  JOIN item AS i ON i.id = e.item
 WHERE e.change = 1 AND e.most IS NOT NULL AND e.live > e.most
