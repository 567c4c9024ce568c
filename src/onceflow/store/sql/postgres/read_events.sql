-- a page of the history, in the order of the transactions. What is newer than the oldest transaction still open
-- has to wait: that one may yet commit events with lower numbers. A cursor that was pruned goes by its neighbours.
WITH cursor AS MATERIALIZED (
  SELECT coalesce((SELECT e.xid FROM event AS e WHERE e.seq = :after),
                  (SELECT min(near.xid) FROM (SELECT e.xid FROM event AS e WHERE e.seq < :after
                                               ORDER BY e.seq DESC LIMIT 100) AS near),
                  CAST('0' AS xid8)) AS xid)
SELECT e.seq, e.at, e.kind, coalesce(i.pipeline, e.pipeline) AS pipeline, i.key, e.item, e.n, e.run, e.stage,
       e.next_stage, e.phase, e.generation, e.fence, e.attempt, e.worker, e.ms, e.data
  FROM event AS e LEFT JOIN item AS i ON i.id = e.item
 WHERE (e.xid, e.seq) > ((SELECT cursor.xid FROM cursor), CAST(:after AS bigint))
   AND e.xid < pg_snapshot_xmin(pg_current_snapshot())
   AND (CAST(:item AS bigint) IS NULL OR e.item = :item)
   AND (CAST(:run AS text) IS NULL OR e.run = :run)
   AND (CAST(:pipeline AS text) IS NULL OR coalesce(i.pipeline, e.pipeline) = :pipeline)
   AND (CAST(:kinds AS text) IS NULL OR replace(:kinds, ' ' || e.kind || ' ', '') <> :kinds)
 ORDER BY e.xid, e.seq LIMIT :most
