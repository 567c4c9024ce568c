-- the index was fed up to this event.
UPDATE onceflow.section_seen SET seq = $1
