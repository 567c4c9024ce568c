-- I6 each history is a path of the machine: every event fits the place the one before left the item at.
SELECT e.item, i.key, 'event ' || e.n || ' (' || e.kind || ') leads from ' || e.stage_before || '/'
       || e.phase_before || ' to ' || coalesce(e.next_stage, e.stage) || '/' || e.phase AS detail
  FROM (SELECT item, n, kind, stage, next_stage, phase, worker, fence,
               lag(coalesce(next_stage, stage)) OVER w AS stage_before, lag(phase) OVER w AS phase_before,
               lag(stage) OVER w AS from_before, lag(next_stage) OVER w AS next_before,
               lag(worker) OVER w AS worker_before, lag(fence) OVER w AS fence_before
          FROM event WHERE item IS NOT NULL
        WINDOW w AS (PARTITION BY item ORDER BY n)) AS e
  JOIN item AS i ON i.id = e.item
 WHERE e.phase_before IS NOT NULL
   AND NOT (
     CASE
       WHEN e.kind IN ('added', 'gate_opened') THEN false
       WHEN e.kind = 'claimed'
         THEN e.stage = e.stage_before AND e.phase = 'active' AND e.phase_before IN ('ready', 'waiting')
       WHEN e.kind = 'reopened'
         THEN e.phase = 'ready' AND e.phase_before IN ('done', 'failed', 'cancelled', 'waiting')
       WHEN e.kind = 'triggered'
         THEN e.stage = e.stage_before AND e.phase = 'ready' AND e.phase_before = 'waiting'
       WHEN e.kind = 'cancelled'
         THEN e.phase = 'cancelled' AND e.phase_before IN ('waiting', 'ready', 'active')
       WHEN e.kind = 'released'
         THEN e.stage = e.stage_before AND e.phase IN ('ready', 'waiting') AND e.phase_before = 'active'
       WHEN e.kind = 'reclaimed'
         THEN e.stage = e.stage_before AND e.phase IN ('ready', 'waiting') AND e.phase_before = 'active'
       WHEN e.kind = 'retried'
         THEN e.stage = e.stage_before AND e.phase = 'waiting' AND e.phase_before = 'active'
       WHEN e.kind = 'failed'
         THEN e.stage = e.stage_before AND e.phase = 'failed' AND e.phase_before = 'active'
       -- what a handler stored: the first event of an attempt leaves active, more may follow it
       ELSE (e.stage = e.stage_before AND e.phase_before = 'active'
             AND (e.phase = 'done' OR e.next_stage IS NOT NULL AND e.phase IN ('ready', 'waiting')))
            OR (e.stage = e.from_before AND e.phase = e.phase_before AND e.worker = e.worker_before
                AND e.fence = e.fence_before AND coalesce(e.next_stage, '') = coalesce(e.next_before, ''))
     END)
UNION ALL
SELECT i.id, i.key, 'the item is at ' || i.stage || '/' || i.phase || ', its last event left it at '
       || coalesce(e.next_stage, e.stage) || '/' || e.phase
  FROM item AS i JOIN event AS e ON e.item = i.id AND e.n = i.version
 WHERE i.stage <> coalesce(e.next_stage, e.stage)
    OR (i.phase <> e.phase AND NOT (i.phase = 'ready' AND e.phase = 'waiting'))
