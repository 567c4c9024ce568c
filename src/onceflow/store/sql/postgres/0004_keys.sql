-- migration 4: every key is in `alias`, an item's own ones too, and only there it is unique. An index on `item`
-- would get a new entry, at a random place, whenever an item moves.
ALTER TABLE alias ALTER COLUMN key DROP NOT NULL;  -- NULL: the item's own, which `item` has

INSERT INTO alias AS a (pipeline, short_key, item) SELECT i.pipeline, i.short_key, i.id FROM item AS i ORDER BY i.short_key
ON CONFLICT (pipeline, short_key) DO UPDATE SET item = excluded.item, key = NULL;

DROP INDEX item_key;

ALTER TABLE item DROP COLUMN short_key;
