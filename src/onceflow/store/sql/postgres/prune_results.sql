-- forget: results that a later generation of the same stage replaced, before that time.
DELETE FROM result
 WHERE (item, stage, generation) IN (
   SELECT r.item, r.stage, r.generation FROM result AS r
    WHERE r.at < :before
      AND EXISTS (SELECT 1 FROM result AS newer
                   WHERE newer.item = r.item AND newer.stage = r.stage AND newer.generation > r.generation)
    LIMIT :most)
RETURNING 1
