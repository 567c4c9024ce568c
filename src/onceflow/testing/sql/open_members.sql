-- how many items of a run keep its gate shut.
SELECT count(*) FROM member JOIN item ON item.id = member.item JOIN run ON run.id = member.run
 WHERE member.run = :run
   AND (item.phase IN ('waiting', 'ready', 'active') OR run.gate = 'completed' AND item.phase <> 'done')
