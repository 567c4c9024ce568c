-- I2 one result per (item, stage, generation), and each with the event that committed it.
SELECT e.item, i.key, 'stage ' || e.stage || ' was finished ' || count(*) || ' times in generation '
       || e.generation AS detail
  FROM event AS e JOIN item AS i ON i.id = e.item
 WHERE e.worker IS NOT NULL AND e.phase IN ('done', 'ready', 'waiting')
   AND (e.next_stage IS NOT NULL OR e.phase = 'done')
   AND NOT EXISTS (SELECT 1 FROM event AS before
                    WHERE before.item = e.item AND before.n = e.n - 1 AND before.fence = e.fence
                      AND before.worker = e.worker AND before.phase = e.phase)
 GROUP BY e.item, i.key, e.stage, e.generation HAVING count(*) > 1
UNION ALL
SELECT e.item, i.key, 'stage ' || e.stage || ' was finished but has no result'
  FROM event AS e JOIN item AS i ON i.id = e.item
 WHERE e.worker IS NOT NULL AND (e.next_stage IS NOT NULL OR e.phase = 'done')
   AND NOT EXISTS (SELECT 1 FROM result AS r
                    WHERE r.item = e.item AND r.stage = e.stage AND r.generation = e.generation)
   AND NOT EXISTS (SELECT 1 FROM result AS r
                    WHERE r.item = e.item AND r.stage = e.stage AND r.generation > e.generation)
UNION ALL
SELECT r.item, i.key, 'the result of stage ' || r.stage || ' has no event that committed it'
  FROM result AS r JOIN item AS i ON i.id = r.item
 WHERE r.stage <> ''
   AND NOT EXISTS (SELECT 1 FROM event AS e
                    WHERE e.item = r.item AND e.stage = r.stage AND e.generation = r.generation
                      AND e.worker IS NOT NULL AND (e.next_stage IS NOT NULL OR e.phase = 'done'))
   AND EXISTS (SELECT 1 FROM event AS e WHERE e.item = r.item AND e.n = 1)
