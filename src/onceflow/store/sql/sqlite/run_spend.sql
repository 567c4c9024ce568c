-- what attempts spent, counted in every run of their items; a run that reaches a ceiling is halted. (A gate's
-- item is no member of its run.)
WITH given (item, tokens, cost) AS (SELECT value ->> 0, value ->> 1, value ->> 2 FROM json_each(:rows)),
counted (run, tokens, cost) AS (
  SELECT m.run, g.tokens, g.cost FROM given AS g CROSS JOIN member AS m WHERE m.item = g.item
  UNION ALL
  SELECT i.run, g.tokens, g.cost FROM given AS g CROSS JOIN item AS i
   WHERE i.id = g.item AND NOT EXISTS (SELECT 1 FROM member AS m WHERE m.item = i.id AND m.run = i.run))
UPDATE run
   SET tokens = run.tokens + spent.tokens, cost = run.cost + spent.cost,
       halted = CASE WHEN run.tokens + spent.tokens >= max_tokens THEN 'its token ceiling is reached'
                     WHEN run.cost + spent.cost >= max_cost THEN 'its cost ceiling is reached'
                     ELSE halted END
  FROM (SELECT run, sum(tokens) AS tokens, sum(cost) AS cost FROM counted GROUP BY run) AS spent
 WHERE run.id = spent.run
