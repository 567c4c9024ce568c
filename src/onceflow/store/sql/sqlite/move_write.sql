-- one row that was carried over from another database.
INSERT INTO {table} ({columns}) VALUES ({values})
