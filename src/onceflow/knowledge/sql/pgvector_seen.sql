-- the event up to which the index was fed.
SELECT seq FROM onceflow.section_seen
