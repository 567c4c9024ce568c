-- the database was carried over to another place: nothing is accepted or worked on here any more, whoever tries.
CREATE TRIGGER moved_add BEFORE INSERT ON item BEGIN SELECT RAISE(ABORT, 'onceflow: moved'); END;
CREATE TRIGGER moved_item BEFORE UPDATE ON item BEGIN SELECT RAISE(ABORT, 'onceflow: moved'); END;
CREATE TRIGGER moved_run BEFORE INSERT ON run BEGIN SELECT RAISE(ABORT, 'onceflow: moved'); END;
CREATE TRIGGER moved_worker BEFORE INSERT ON worker BEGIN SELECT RAISE(ABORT, 'onceflow: moved'); END;
CREATE TRIGGER moved_stage BEFORE UPDATE OF chosen_limit, paused_at ON stage BEGIN SELECT RAISE(ABORT, 'onceflow: moved'); END;
