-- migration 2: pieces of a stage's work that a later attempt need not do again.
CREATE TABLE part (
  item       bigint NOT NULL,
  stage      text COLLATE "C" NOT NULL,
  name       text COLLATE "C" NOT NULL,
  generation bigint NOT NULL,
  fence      bigint NOT NULL,           -- whose it is: asked for again under one fence, it stays as it is
  at         bigint NOT NULL,
  body       bytea NOT NULL,
  PRIMARY KEY (item, stage, name)
);
ALTER TABLE part ALTER COLUMN body SET STORAGE EXTERNAL;  -- what is worth it is compressed already
