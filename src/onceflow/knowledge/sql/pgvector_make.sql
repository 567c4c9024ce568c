-- make the tables of the search index, once; `vector` comes from the extension. Several statements are one
-- transaction: who makes them at the same moment waits here, and finds them.
SELECT pg_advisory_xact_lock(hashtext('onceflow.section_vector'));
CREATE TABLE IF NOT EXISTS onceflow.section_vector (
  item       bigint NOT NULL,
  n          integer NOT NULL,
  generation integer NOT NULL,
  tie        bigint NOT NULL,
  model      text NOT NULL,
  vector     vector NOT NULL,
  PRIMARY KEY (item, n)
);
CREATE TABLE IF NOT EXISTS onceflow.section_seen (
  one boolean PRIMARY KEY DEFAULT true CHECK (one),
  seq bigint NOT NULL
);
INSERT INTO onceflow.section_seen (seq) VALUES (0) ON CONFLICT DO NOTHING
