-- the items' own keys, which are unique in `alias` only.
INSERT INTO alias (pipeline, short_key, item) SELECT pipeline, shorten(key), id FROM item
