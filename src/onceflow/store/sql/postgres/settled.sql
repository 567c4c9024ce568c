-- up to which number every event is there, or never will be.
SELECT settled() AS seq
