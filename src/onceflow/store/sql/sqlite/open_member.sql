-- the first item of a run, after the witness, that keeps its gate shut.
SELECT member.item
  FROM member JOIN item ON item.id = member.item
 WHERE member.run = :run AND member.item > :witness
   AND (item.phase IN ('waiting', 'ready', 'active') OR :gate = 'completed' AND item.phase <> 'done')
 ORDER BY member.item LIMIT 1
