-- migration 3: an item is claimed by its depth before its age, and has a depth of its own in each of its runs.
DROP INDEX onceflow.item_ready;
CREATE INDEX item_ready ON onceflow.item (pipeline, stage, lane, run, priority, depth, id) WHERE phase = 'ready';
ALTER TABLE onceflow.member ADD COLUMN depth bigint NOT NULL DEFAULT 0;
UPDATE onceflow.member AS m SET depth = i.depth FROM onceflow.item AS i WHERE i.id = m.item AND i.depth > 0;
