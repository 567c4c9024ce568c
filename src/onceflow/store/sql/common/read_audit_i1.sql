-- I1 fencing: only the holder of the newest lease finishes an attempt, and fences only grow.
SELECT e.item, i.key, 'event ' || e.n || ' (' || e.kind || ') carries fence ' || e.fence
       || ', the item was at ' || coalesce(CAST(e.fence_before AS text), 'none') AS detail
  FROM (SELECT item, n, kind, fence, worker, phase,
               lag(fence) OVER w AS fence_before, lag(phase) OVER w AS phase_before,
               lag(worker) OVER w AS worker_before, lag(kind) OVER w AS kind_before
          FROM event WHERE item IS NOT NULL
        WINDOW w AS (PARTITION BY item ORDER BY n)) AS e
  JOIN item AS i ON i.id = e.item
 WHERE e.fence < e.fence_before
    OR (e.kind = 'claimed' AND e.fence <= e.fence_before)
    OR (e.worker IS NOT NULL AND e.kind <> 'claimed' AND e.fence_before IS NOT NULL
        AND (e.fence <> e.fence_before OR e.worker_before IS NULL OR e.worker <> e.worker_before))
UNION ALL
SELECT i.id, i.key, 'the item is at fence ' || i.fence || ', its last event at ' || e.fence
  FROM item AS i JOIN event AS e ON e.item = i.id AND e.n = i.version
 WHERE e.fence > i.fence
