-- migration 1: the tables. Times are milliseconds of the store's own clock.
CREATE TABLE meta (
  name  TEXT PRIMARY KEY,
  value TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE pipeline (
  name   TEXT PRIMARY KEY,
  states TEXT NOT NULL                  -- {"stage": {"phase": "state"}}, for readers without the program
) STRICT, WITHOUT ROWID;

CREATE TABLE stage (
  pipeline        TEXT NOT NULL,
  stage           TEXT NOT NULL,
  position        INTEGER NOT NULL,
  is_gate         INTEGER NOT NULL DEFAULT 0,
  declared_limit  INTEGER CHECK (declared_limit >= 1),
  chosen_limit    INTEGER CHECK (chosen_limit >= 1),  -- an operator's, it wins
  lane_limit      INTEGER CHECK (lane_limit >= 1),
  lane_spacing_ms INTEGER NOT NULL DEFAULT 0,
  attempts        INTEGER NOT NULL CHECK (attempts >= 1),
  lease_ms        INTEGER NOT NULL CHECK (lease_ms > 0),
  deadline_ms     INTEGER NOT NULL CHECK (deadline_ms > 0),
  paused_at       INTEGER,
  paused_why      TEXT,
  PRIMARY KEY (pipeline, stage)
) STRICT, WITHOUT ROWID;

CREATE TABLE worker (
  id         TEXT PRIMARY KEY,          -- a fresh one per process start, never a name
  host       TEXT NOT NULL,
  pid        INTEGER NOT NULL,
  boot       TEXT NOT NULL,
  started_at INTEGER NOT NULL,
  beat_at    INTEGER NOT NULL,
  report     TEXT
) STRICT, WITHOUT ROWID;

CREATE TABLE run (
  id             TEXT PRIMARY KEY,
  pipeline       TEXT NOT NULL,
  created_at     INTEGER NOT NULL,
  sealed         INTEGER NOT NULL DEFAULT 0,
  accepted       INTEGER NOT NULL DEFAULT 0,
  max_items      INTEGER,
  max_depth      INTEGER,
  max_tokens     INTEGER,
  max_cost       REAL,
  tokens         INTEGER NOT NULL DEFAULT 0,
  cost           REAL NOT NULL DEFAULT 0,
  halted         TEXT,                  -- why nothing of it is claimed: a ceiling was reached
  gate           TEXT CHECK (gate IN ('settled', 'completed')),  -- NULL: it has no gate
  gate_stage     TEXT,
  witness        INTEGER NOT NULL DEFAULT 0,  -- members up to here were seen settled
  settled_at     INTEGER,               -- the gate opened (or, without one, all is settled)
  gate_item      INTEGER,
  finished_at    INTEGER,
  CHECK (max_items IS NULL OR accepted <= max_items)
) STRICT;
CREATE INDEX run_unfinished ON run (id) WHERE finished_at IS NULL;
CREATE INDEX run_halted ON run (id) WHERE halted IS NOT NULL;

CREATE TABLE item (
  id         INTEGER PRIMARY KEY,
  pipeline   TEXT NOT NULL,
  key        TEXT NOT NULL,
  stage      TEXT NOT NULL,
  phase      TEXT NOT NULL
             CHECK (phase IN ('waiting', 'ready', 'active', 'done', 'failed', 'cancelled')),
  run        TEXT NOT NULL,             -- the run whose turn it uses
  lane       TEXT NOT NULL DEFAULT '',
  priority   INTEGER NOT NULL DEFAULT 0,
  depth      INTEGER NOT NULL DEFAULT 0,
  generation INTEGER NOT NULL DEFAULT 1,
  fence      INTEGER NOT NULL DEFAULT 0,
  attempt    INTEGER NOT NULL DEFAULT 0,
  version    INTEGER NOT NULL DEFAULT 0,  -- how many events it has
  worker     TEXT,
  claimed_at INTEGER,
  deadline   INTEGER,
  due_at     INTEGER,
  created_at INTEGER NOT NULL,
  updated_at INTEGER NOT NULL,
  error      TEXT,
  error_code TEXT,
  UNIQUE (pipeline, key),
  CHECK ((phase = 'active') = (worker IS NOT NULL)),
  CHECK ((phase = 'active') = (deadline IS NOT NULL)),
  CHECK (due_at IS NULL OR phase = 'waiting')
) STRICT;
CREATE INDEX item_ready ON item (pipeline, stage, lane, run, priority, id) WHERE phase = 'ready';
CREATE INDEX item_active ON item (pipeline, stage, lane) WHERE phase = 'active';
CREATE INDEX item_due ON item (due_at) WHERE phase = 'waiting' AND due_at IS NOT NULL;

CREATE TABLE lane (
  pipeline TEXT NOT NULL,
  stage    TEXT NOT NULL,
  lane     TEXT NOT NULL,
  next_at  INTEGER NOT NULL DEFAULT 0,  -- no start before this time
  PRIMARY KEY (pipeline, stage, lane)
) STRICT, WITHOUT ROWID;

CREATE TABLE result (
  item       INTEGER NOT NULL,
  stage      TEXT NOT NULL,             -- '' is what came with the item itself
  generation INTEGER NOT NULL,
  at         INTEGER NOT NULL,
  body       BLOB NOT NULL,
  PRIMARY KEY (item, stage, generation)
) STRICT, WITHOUT ROWID;

CREATE TABLE partial (
  item  INTEGER PRIMARY KEY,
  fence INTEGER NOT NULL,               -- the epoch: a new attempt starts a new text
  text  TEXT NOT NULL
) STRICT;

CREATE TABLE event (
  seq        INTEGER PRIMARY KEY,
  at         INTEGER NOT NULL,
  kind       TEXT NOT NULL,
  item       INTEGER,
  n          INTEGER,
  pipeline   TEXT,                      -- only where there is no item
  run        TEXT,
  stage      TEXT,                      -- where the attempt was
  next_stage TEXT,                      -- where the item went on to, if it did
  phase      TEXT,
  generation INTEGER,
  fence      INTEGER,
  attempt    INTEGER,
  worker     TEXT,
  ms         INTEGER,
  data       TEXT
) STRICT;
CREATE UNIQUE INDEX event_of_item ON event (item, n) WHERE item IS NOT NULL;

CREATE TABLE member (
  run   TEXT NOT NULL,
  item  INTEGER NOT NULL,
  since INTEGER NOT NULL,
  PRIMARY KEY (run, item)
) STRICT, WITHOUT ROWID;
CREATE INDEX member_of ON member (item, run);

CREATE TABLE alias (
  pipeline TEXT NOT NULL,
  key      TEXT NOT NULL,
  item     INTEGER NOT NULL,
  PRIMARY KEY (pipeline, key)
) STRICT, WITHOUT ROWID;
