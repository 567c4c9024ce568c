-- how many items a run has.
SELECT count(*) FROM member WHERE run = :run
