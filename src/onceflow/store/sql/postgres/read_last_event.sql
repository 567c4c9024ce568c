-- the newest event that readers may see: reading goes on after it.
SELECT coalesce((SELECT e.seq FROM event AS e
                  WHERE e.xid < pg_snapshot_xmin(pg_current_snapshot())
                  ORDER BY e.xid DESC, e.seq DESC LIMIT 1), 0) AS seq
