-- what attempts at an item's stage have kept since the stage last had a result.
SELECT p.name, p.body FROM part AS p
 WHERE p.item = :item AND p.stage = :stage
   AND NOT EXISTS (SELECT 1 FROM result AS r
                    WHERE r.item = p.item AND r.stage = p.stage AND r.generation >= p.generation)
 ORDER BY p.at, p.name
