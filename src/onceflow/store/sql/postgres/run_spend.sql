-- what attempts spent, counted in every run of their items; a run that reaches a ceiling is halted. (A gate's
-- item is no member of its run.)
UPDATE run
   SET tokens = run.tokens + spent.tokens, cost = run.cost + spent.cost,
       halted = CASE WHEN run.tokens + spent.tokens >= max_tokens THEN 'its token ceiling is reached'
                     WHEN run.cost + spent.cost >= max_cost THEN 'its cost ceiling is reached'
                     ELSE halted END
  FROM (SELECT m.run, CAST(sum(s.tokens) AS bigint) AS tokens, sum(s.cost) AS cost
          FROM unnest(CAST(:items AS bigint[]), CAST(:tokens AS bigint[]), CAST(:costs AS double precision[]))
               AS s (item, tokens, cost)
         CROSS JOIN LATERAL (SELECT run FROM member WHERE item = s.item
                              UNION SELECT run FROM item WHERE id = s.item) AS m
         WHERE m.run = ANY(CAST(:runs AS text[]))
         GROUP BY m.run) AS spent
 WHERE run.id = spent.run
