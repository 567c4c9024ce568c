-- who holds up the readers of events: transactions of Onceflow's own that have been open for a while. What others do in
-- this server does not count.
SELECT a.pid, a.application_name AS program, a.datname AS database, coalesce(a.state, '') AS state,
       CAST(extract(epoch FROM clock_timestamp() - a.xact_start) * 1000 AS bigint) AS ms
  FROM pg_locks AS l JOIN pg_stat_activity AS a ON a.pid = l.pid
 WHERE l.locktype = 'advisory' AND l.objsubid = 1 AND CAST(l.classid AS bigint) >> 16 = 20302
   AND l.database = (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database())
   AND a.xact_start < clock_timestamp() - make_interval(secs => :ms / 1000.0)
 ORDER BY a.xact_start
