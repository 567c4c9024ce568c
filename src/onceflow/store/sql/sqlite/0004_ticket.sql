-- migration 4: a lease is named by the exchange that gave it as well, says whether its handler has begun, and
-- an item counts the workers that died with it in its stage.
ALTER TABLE item ADD COLUMN ticket INTEGER NOT NULL DEFAULT 0;
ALTER TABLE item ADD COLUMN begun INTEGER NOT NULL DEFAULT 0;  -- 2: others of its worker were taken back before it
ALTER TABLE item ADD COLUMN deaths INTEGER NOT NULL DEFAULT 0;
UPDATE item SET begun = 1 WHERE phase = 'active';
