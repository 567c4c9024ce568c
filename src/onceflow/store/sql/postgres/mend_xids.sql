-- events that came from another server (a restored dump) carry transaction ids that are still to come here:
-- they would be hidden until then. They are put before all others, in their own order.
UPDATE event SET xid = '1' WHERE xid >= pg_snapshot_xmax(pg_current_snapshot())
