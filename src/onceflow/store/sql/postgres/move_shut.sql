-- the database was carried over to another place: nothing is accepted or worked on here any more, whoever tries.
CREATE FUNCTION refuse_moved() RETURNS trigger LANGUAGE plpgsql AS
  'BEGIN RAISE EXCEPTION ''onceflow: moved to %'', (SELECT m.value FROM onceflow.meta AS m WHERE m.name = ''moved_to''); END';
CREATE TRIGGER moved_item BEFORE INSERT OR UPDATE ON item FOR EACH ROW EXECUTE FUNCTION refuse_moved();
CREATE TRIGGER moved_run BEFORE INSERT ON run FOR EACH ROW EXECUTE FUNCTION refuse_moved();
CREATE TRIGGER moved_worker BEFORE INSERT ON worker FOR EACH ROW EXECUTE FUNCTION refuse_moved();
CREATE TRIGGER moved_stage BEFORE UPDATE OF chosen_limit, paused_at ON stage FOR EACH ROW EXECUTE FUNCTION refuse_moved();
