-- on which server, and on which timeline of it, the history goes on; and where it was written until now.
SELECT CAST(s.system_identifier AS text) || '/' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8) AS here,
       (SELECT m.value FROM onceflow.meta AS m WHERE m.name = 'history') AS was
  FROM pg_control_system() AS s
