-- new items and events go on behind those that were carried over.
SELECT setval(pg_get_serial_sequence('onceflow.item', 'id'), (SELECT coalesce(max(id), 0) + 1 FROM item), false),
       setval(pg_get_serial_sequence('onceflow.event', 'seq'), (SELECT coalesce(max(seq), 0) + 1 FROM event), false)
