-- what runs still accept. Their rows are locked, in the order of their ids.
SELECT r.id, r.pipeline, r.sealed, r.accepted, r.max_items, r.max_depth
  FROM run AS r WHERE r.id = ANY(CAST(:ids AS text[])) ORDER BY r.id FOR UPDATE
