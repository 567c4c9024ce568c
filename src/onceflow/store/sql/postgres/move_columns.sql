-- the tables and their columns, in their order.
SELECT c.table_name AS name, c.column_name AS column
  FROM information_schema.columns AS c
  JOIN information_schema.tables AS t USING (table_schema, table_name)
 WHERE c.table_schema = 'onceflow' AND t.table_type = 'BASE TABLE'
 ORDER BY c.table_name, c.ordinal_position
