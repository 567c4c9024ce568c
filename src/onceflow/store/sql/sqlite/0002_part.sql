-- migration 2: pieces of a stage's work that a later attempt need not do again.
CREATE TABLE part (
  item       INTEGER NOT NULL,
  stage      TEXT NOT NULL,
  name       TEXT NOT NULL,
  generation INTEGER NOT NULL,
  fence      INTEGER NOT NULL,          -- whose it is: asked for again under one fence, it stays as it is
  at         INTEGER NOT NULL,
  body       BLOB NOT NULL,
  PRIMARY KEY (item, stage, name)
) STRICT, WITHOUT ROWID;
