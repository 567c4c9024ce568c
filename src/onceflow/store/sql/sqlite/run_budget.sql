-- what a run still accepts.
SELECT pipeline, sealed, accepted, max_items, max_depth FROM run WHERE id = :id
