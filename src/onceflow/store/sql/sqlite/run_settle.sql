-- the gate opens: once, and only while every item of the sealed run is settled.
UPDATE run SET settled_at = :now, witness = 0
 WHERE id = :run AND sealed AND settled_at IS NULL
   AND NOT EXISTS (
     SELECT 1 FROM member JOIN item ON item.id = member.item
      WHERE member.run = run.id
        AND (item.phase IN ('waiting', 'ready', 'active') OR gate = 'completed' AND item.phase <> 'done'))
