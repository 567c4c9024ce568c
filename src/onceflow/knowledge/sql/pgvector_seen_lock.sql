-- the event up to which the index was fed; nobody else feeds it until the transaction ends.
SELECT seq FROM onceflow.section_seen FOR UPDATE
