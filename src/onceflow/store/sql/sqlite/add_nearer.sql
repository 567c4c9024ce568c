-- a shorter way to members of a run was found.
UPDATE member SET depth = n.value ->> 1
  FROM json_each(:nearer) AS n
 WHERE member.run = :run AND member.item = n.value ->> 0 AND member.depth > n.value ->> 1
