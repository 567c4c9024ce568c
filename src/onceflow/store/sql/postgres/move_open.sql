-- a database that was carried over is used again all the same.
DROP FUNCTION IF EXISTS onceflow.refuse_moved() CASCADE;
DELETE FROM onceflow.meta WHERE name = 'moved_to';
