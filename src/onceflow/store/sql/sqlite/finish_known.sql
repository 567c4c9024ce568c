-- finish asked again after a lost reply: was this lease's finish kept the first time?
-- Whoever else moves an item raises its fence, so an event with this fence is the holder's own.
SELECT EXISTS (SELECT 1 FROM event
                WHERE item = :item AND fence = :fence AND worker = :worker AND phase <> 'active')
