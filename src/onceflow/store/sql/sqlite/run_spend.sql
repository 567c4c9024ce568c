-- what an attempt spent, counted in every run of its item; a run that reaches a ceiling is halted. (A gate's
-- item is no member of its run.)
UPDATE run
   SET tokens = tokens + :tokens, cost = cost + :cost,
       halted = CASE WHEN tokens + :tokens >= max_tokens THEN 'its token ceiling is reached'
                     WHEN cost + :cost >= max_cost THEN 'its cost ceiling is reached'
                     ELSE halted END
 WHERE id IN (SELECT run FROM member WHERE item = :item UNION SELECT run FROM item WHERE id = :item)
