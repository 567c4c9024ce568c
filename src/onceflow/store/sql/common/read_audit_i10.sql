-- I10 attempts are bounded and counted at the claim: a graceful release gives one back, and so does a reclaim that
-- leaves the item at a lower attempt, because no handler had begun or nobody knows whose fault it was.
SELECT e.item, i.key, 'stage ' || e.stage || ' had ' || sum(e.counts)
       || ' attempts in generation ' || e.generation || ', at most ' || s.attempts AS detail
  FROM (SELECT item, n, stage, generation,
               CASE WHEN kind = 'claimed' THEN 1 WHEN kind = 'released' THEN -1
                    WHEN kind = 'reclaimed' AND attempt < lag(attempt) OVER (PARTITION BY item ORDER BY n) THEN -1
                    ELSE 0 END AS counts
          FROM event WHERE item IS NOT NULL) AS e
  JOIN item AS i ON i.id = e.item
  JOIN stage AS s ON s.pipeline = i.pipeline AND s.stage = e.stage
 WHERE e.counts <> 0
   AND NOT EXISTS (SELECT 1 FROM event AS op
                    WHERE op.item = e.item AND op.kind = 'reopened' AND op.generation = e.generation
                      AND op.n > e.n)
 GROUP BY e.item, i.key, e.stage, e.generation, s.attempts
HAVING sum(e.counts) > s.attempts
