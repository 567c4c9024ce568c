-- the leases that a worker has on some items, each with its input: the newest result of the stage before. A stage that
-- this program does not have has none.
SELECT i.id, i.pipeline, i.key, i.stage, i.fence, i.attempt, i.generation, i.run, i.depth, i.claimed_at, i.ticket,
       i.deaths >= :deaths_max AS alone,
       (SELECT r.body
          FROM unnest(CAST(:of_pipelines AS text[]), CAST(:of_stages AS text[]), CAST(:befores AS text[]))
               AS b (pipeline, stage, before)
         CROSS JOIN LATERAL (SELECT o.body FROM result AS o WHERE o.item = i.id AND o.stage = b.before
                              ORDER BY o.generation DESC LIMIT 1) AS r
         WHERE b.pipeline = i.pipeline AND b.stage = i.stage LIMIT 1) AS body
  FROM item AS i
 WHERE i.id = ANY(CAST(CAST(:items AS text) AS bigint[])) AND i.phase || '' = 'active' AND i.worker = :worker
 ORDER BY i.id
