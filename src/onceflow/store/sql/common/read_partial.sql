-- the text that an item's attempt has streamed so far, and its epoch.
SELECT fence, text FROM partial WHERE item = :item
