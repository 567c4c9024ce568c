-- migration 9: a lease is named by the exchange that gave it as well, says whether its handler has begun, and an item
-- counts the workers that died with it in its stage.
ALTER TABLE item
  ADD COLUMN ticket bigint  NOT NULL DEFAULT 0,
  ADD COLUMN begun  integer NOT NULL DEFAULT 0,  -- 2: others of its worker were taken back before it
  ADD COLUMN deaths bigint  NOT NULL DEFAULT 0;
UPDATE item SET begun = 1 WHERE phase = 'active';

-- Their successors take other parameters (functions.sql). Another program's worker that still calls them is refused.
DROP FUNCTION IF EXISTS add_one;
DROP FUNCTION IF EXISTS claim_ready;
DROP FUNCTION IF EXISTS finish_attempts;

-- No key may look like the short form of another one: whatever has the sign of a short form in it is shortened, too.
CREATE OR REPLACE FUNCTION shorten(key text) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE AS
  'SELECT CASE WHEN octet_length(key) <= 1000 AND strpos(key, ''…'') = 0 THEN key
               ELSE left(key, 100) || ''…'' || CAST(octet_length(key) AS text) || md5(key) || md5(''…'' || key) END';
UPDATE alias AS a SET short_key = shorten(coalesce(a.key, i.key)) FROM item AS i
 WHERE i.id = a.item AND strpos(a.short_key, '…') > 0 AND a.short_key <> shorten(coalesce(a.key, i.key));
