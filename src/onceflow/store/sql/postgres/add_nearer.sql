-- a shorter way to members of a run was found. The run is locked.
UPDATE member SET depth = n.depth
  FROM unnest(CAST(:ids AS bigint[]), CAST(:depths AS bigint[])) AS n (id, depth)
 WHERE member.run = :run AND member.item = n.id AND member.depth > n.depth
