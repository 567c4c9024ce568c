-- a run accepts items, never more than it may (the table's own check says so too).
UPDATE run SET accepted = accepted + :count, sealed = greatest(sealed, :seal) WHERE id = :id
