-- the newest number that readers may see: reading goes on after it.
SELECT settled() AS seq
