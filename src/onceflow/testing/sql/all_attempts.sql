-- per item, stage and generation: how many attempts were claimed, given back, and allowed.
SELECT e.item, e.stage, e.generation, sum(e.kind = 'claimed'), sum(e.kind = 'released'),
       sum(e.kind = 'reopened'), s.attempts
  FROM event AS e JOIN item AS i ON i.id = e.item
  JOIN stage AS s ON s.pipeline = i.pipeline AND s.stage = e.stage
 GROUP BY e.item, e.stage, e.generation
