-- texts in progress that no attempt can have written. Those of attempts that are over are only not read.
SELECT p.item, p.fence, i.fence, i.phase FROM partial AS p JOIN item AS i ON i.id = p.item
 WHERE p.fence > i.fence
