-- add, the history of items that begin at once: added, then claimed.
INSERT INTO event (at, kind, item, n, run, stage, phase, generation, fence, attempt, worker)
SELECT :now, e.kind, i.id, e.n, i.run, i.stage, e.phase, i.generation, e.n - 1, e.n - 1,
       CASE e.n WHEN 2 THEN i.worker END
  FROM item AS i  -- CROSS: each item's two events lie side by side
 CROSS JOIN (SELECT 1 AS n, 'added' AS kind, 'ready' AS phase UNION ALL SELECT 2, 'claimed', 'active') AS e
 WHERE i.id BETWEEN :first AND :last
