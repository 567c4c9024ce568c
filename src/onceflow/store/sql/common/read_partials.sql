-- the items whose attempts have streamed text so far, their epochs, and how much; a few hundred at the most.
SELECT p.item, p.fence, length(p.text) AS chars, i.pipeline, i.key, i.stage, i.run
  FROM partial AS p JOIN item AS i ON i.id = p.item AND i.fence = p.fence AND i.phase = 'active'
 ORDER BY p.item LIMIT :most
