-- what time it is for this database.
SELECT :now AS now
