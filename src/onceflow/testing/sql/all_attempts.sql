-- per item, stage and generation: how many attempts were claimed, given back, and allowed. A reclaim gives one back
-- where it leaves the item at a lower attempt: its handler had not begun, or nobody knows whose fault the death was.
SELECT e.item, e.stage, e.generation, sum(e.kind = 'claimed'),
       sum(e.kind = 'released' OR (e.kind = 'reclaimed' AND e.attempt < e.attempt_before)),
       sum(e.kind = 'reopened'), s.attempts
  FROM (SELECT *, lag(attempt) OVER (PARTITION BY item ORDER BY n) AS attempt_before
          FROM event WHERE item IS NOT NULL) AS e
  JOIN item AS i ON i.id = e.item
  JOIN stage AS s ON s.pipeline = i.pipeline AND s.stage = e.stage
 GROUP BY e.item, e.stage, e.generation
