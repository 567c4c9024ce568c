-- migration 3: an item is claimed by its depth before its age, and has a depth of its own in each of its runs.
DROP INDEX item_ready;
CREATE INDEX item_ready ON item (pipeline, stage, lane, run, priority, depth, id) WHERE phase = 'ready';
ALTER TABLE member ADD COLUMN depth INTEGER NOT NULL DEFAULT 0;
UPDATE member SET depth = (SELECT item.depth FROM item WHERE item.id = member.item)
 WHERE item IN (SELECT id FROM item WHERE item.depth > 0);
