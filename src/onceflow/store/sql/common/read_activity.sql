-- what each stage still has to do: something ready, something leased, something backing off.
SELECT s.pipeline, s.stage,
       CASE WHEN s.paused_at IS NULL AND EXISTS (
         SELECT 1 FROM item AS i
          WHERE i.pipeline = s.pipeline AND i.stage = s.stage AND i.phase = 'ready'
            AND i.run NOT IN (SELECT id FROM run WHERE halted IS NOT NULL)) THEN 1 ELSE 0 END AS ready,
       CASE WHEN EXISTS (
         SELECT 1 FROM item AS i
          WHERE i.pipeline = s.pipeline AND i.stage = s.stage AND i.phase = 'active')
         THEN 1 ELSE 0 END AS active,
       CASE WHEN s.paused_at IS NULL AND EXISTS (
         SELECT 1 FROM item AS i
          WHERE i.phase = 'waiting' AND i.due_at IS NOT NULL
            AND i.pipeline = s.pipeline AND i.stage = s.stage) THEN 1 ELSE 0 END AS backing_off
  FROM stage AS s
