-- add: what came with new items, before their first stage.
INSERT INTO result (item, stage, generation, at, body)
SELECT s.id, '', 1, c.now, s.body
  FROM unnest(CAST(:ids AS bigint[]), CAST(:bodies AS bytea[])) AS s (id, body)
 CROSS JOIN (SELECT clock_ms(:now) AS now) AS c
