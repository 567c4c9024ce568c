-- the history goes on on another server: its last events may be lost, and their numbers must not come again. Readers
-- that were ahead are behind again.
SELECT setval(pg_get_serial_sequence('onceflow.event', 'seq'),
              ((last_value >> 32) + 1) << 32) AS seq
  FROM event_seq_seq
