-- every result of a stage with the fence of the attempt that committed it, and when that was claimed.
SELECT r.item, r.stage, r.generation, r.body, f.fence, c.at
  FROM result AS r
  LEFT JOIN event AS f ON f.seq = (SELECT min(e.seq) FROM event AS e
                                    WHERE e.item = r.item AND e.stage = r.stage AND e.generation = r.generation
                                      AND e.worker IS NOT NULL AND (e.next_stage IS NOT NULL OR e.phase = 'done'))
  LEFT JOIN event AS c ON c.item = r.item AND c.fence = f.fence AND c.kind = 'claimed'
 WHERE r.stage <> '' ORDER BY r.item, r.stage, r.generation
