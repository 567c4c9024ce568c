-- ids for new items, so that their order is the order they came in.
SELECT nextval(pg_get_serial_sequence('item', 'id')) AS id FROM generate_series(1, CAST(:count AS bigint))
