-- migration 10: events are read in the order of their numbers, up to where none can come any more (functions.sql), and a
-- database says on which server, and on which timeline of it, its history was written.
DROP INDEX event_by_seq;
DROP INDEX event_by_commit;
ALTER TABLE event DROP COLUMN xid;
CREATE UNIQUE INDEX event_by_seq ON event (seq);
