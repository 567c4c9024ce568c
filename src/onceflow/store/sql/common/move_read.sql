-- every row of a table, to carry it over to another database.
SELECT {columns} FROM {table}
