-- how far runs were seen settled: the next look begins there. Never a reason to open a gate.
WITH free AS MATERIALIZED (
  SELECT r.id, s.witness
    FROM unnest(CAST(:runs AS text[]), CAST(:witnesses AS bigint[])) AS s (run, witness)
    JOIN run AS r ON r.id = s.run
   ORDER BY r.id FOR UPDATE OF r SKIP LOCKED)
UPDATE run SET witness = free.witness FROM free WHERE run.id = free.id AND run.settled_at IS NULL
