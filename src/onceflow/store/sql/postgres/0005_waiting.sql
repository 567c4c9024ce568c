-- migration 5: what waits is found also where no time wakes it: a gate asks for everything that is still open.
DROP INDEX onceflow.item_due;
CREATE INDEX item_waiting ON onceflow.item (due_at) WHERE phase = 'waiting';
