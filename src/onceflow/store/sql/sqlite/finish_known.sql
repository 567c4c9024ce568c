-- finish asked again after a lost reply: was this lease's finish kept the first time?
-- Whoever else moves an item raises its fence, so an event with this fence is the holder's own. A database that
-- went back to an older state may give the same id and fence to another key.
SELECT EXISTS (SELECT 1 FROM event
                WHERE item = :item AND fence = :fence AND worker = :worker AND phase <> 'active')
   AND (EXISTS (SELECT 1 FROM item WHERE id = :item AND pipeline = :pipeline AND key = :key)
        OR EXISTS (SELECT 1 FROM alias WHERE pipeline = :pipeline AND key = :key AND item = :item))
