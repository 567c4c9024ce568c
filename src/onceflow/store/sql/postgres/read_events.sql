-- a page of the history, in the order of the transactions. What is newer than the oldest transaction still open
-- has to wait: that one may yet commit events with lower numbers. Who goes on reading knows the transaction of
-- his cursor; otherwise it is looked up. A cursor that was pruned goes by its neighbours: some of them may be
-- seen again, nothing is missed.
WITH cursor AS MATERIALIZED (
  SELECT coalesce(CAST(CAST(:after_xid AS text) AS xid8),
                  (SELECT e.xid FROM event AS e WHERE e.seq = :after LIMIT 1),
                  (SELECT min(e.xid) FROM event AS e WHERE e.seq < :after AND e.seq > :after - 1000),
                  (SELECT min(e.xid) FROM event AS e WHERE e.seq > :after),
                  CAST('0' AS xid8)) AS xid)
SELECT CAST(e.xid AS text) AS xid, e.seq, e.at, e.kind, coalesce(i.pipeline, e.pipeline) AS pipeline, i.key, e.item, e.n, e.run, e.stage,
       e.next_stage, e.phase, e.generation, e.fence, e.attempt, e.worker, e.ms, e.data
  FROM event AS e LEFT JOIN item AS i ON i.id = e.item
 WHERE (e.xid, e.seq) > ((SELECT cursor.xid FROM cursor), CAST(:after AS bigint))
   AND e.xid < pg_snapshot_xmin(pg_current_snapshot())
   AND (CAST(:item AS bigint) IS NULL OR e.item = :item)
   AND (CAST(:run AS text) IS NULL OR e.run = :run)
   AND (CAST(:pipeline AS text) IS NULL OR coalesce(i.pipeline, e.pipeline) = :pipeline)
   AND (CAST(:kinds AS text) IS NULL OR replace(:kinds, ' ' || e.kind || ' ', '') <> :kinds)
 ORDER BY e.xid, e.seq LIMIT :most
