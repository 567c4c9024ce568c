-- texts in progress that belong to no live lease.
SELECT p.item, p.fence, i.fence, i.phase FROM partial AS p JOIN item AS i ON i.id = p.item
 WHERE i.phase <> 'active' OR p.fence <> i.fence
