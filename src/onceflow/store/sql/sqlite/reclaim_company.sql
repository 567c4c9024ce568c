-- reclaim, before anything is taken back: of which leases nobody can know whether they ended their worker, since
-- several handlers ran in it when it died. Also of those that one bounded statement leaves for the next.
UPDATE item SET begun = 2
 WHERE phase = 'active' AND begun = 1
   AND worker IN (
     SELECT i.worker
       FROM item AS i
       JOIN stage AS t ON t.pipeline = i.pipeline AND t.stage = i.stage
       LEFT JOIN worker AS w ON w.id = i.worker
      WHERE i.phase = 'active' AND i.begun > 0
      GROUP BY i.worker
     HAVING count(*) > 1 AND max(w.id IS NULL OR w.boot <> :boot OR :now - w.beat_at > t.lease_ms))
