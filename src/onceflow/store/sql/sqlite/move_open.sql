-- a database that was carried over is used again all the same.
DROP TRIGGER IF EXISTS moved_add;
DROP TRIGGER IF EXISTS moved_item;
DROP TRIGGER IF EXISTS moved_run;
DROP TRIGGER IF EXISTS moved_worker;
DROP TRIGGER IF EXISTS moved_stage;
DELETE FROM meta WHERE name = 'moved_to';
