-- I10 attempts are bounded and counted at the claim: a graceful release gives one back.
SELECT e.item, i.key, 'stage ' || e.stage || ' had ' || sum(CASE WHEN e.kind = 'claimed' THEN 1 ELSE -1 END)
       || ' attempts in generation ' || e.generation || ', at most ' || s.attempts AS detail
  FROM event AS e
  JOIN item AS i ON i.id = e.item
  JOIN stage AS s ON s.pipeline = i.pipeline AND s.stage = e.stage
 WHERE e.kind IN ('claimed', 'released')
   AND NOT EXISTS (SELECT 1 FROM event AS op
                    WHERE op.item = e.item AND op.kind = 'reopened' AND op.generation = e.generation
                      AND op.n > e.n)
 GROUP BY e.item, i.key, e.stage, e.generation, s.attempts
HAVING sum(CASE WHEN e.kind = 'claimed' THEN 1 ELSE -1 END) > s.attempts
