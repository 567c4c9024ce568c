-- how far a run was seen settled: the next look begins there. Never a reason to open the gate.
UPDATE run SET witness = :witness WHERE id = :run
