-- where this database was carried over to, if it was.
SELECT m.value AS place FROM meta AS m WHERE m.name = 'moved_to'
