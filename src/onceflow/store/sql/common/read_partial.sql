-- the text that an item's attempt has streamed so far, and its epoch; nothing of an attempt that is over.
SELECT p.fence, p.text
  FROM partial AS p JOIN item AS i ON i.id = p.item AND i.fence = p.fence AND i.phase = 'active'
 WHERE p.item = :item
