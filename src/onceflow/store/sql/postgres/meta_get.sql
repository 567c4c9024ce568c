-- one fact about the database itself.
SELECT value FROM meta WHERE name = :name
