-- whether an attempt's end is in the history.
SELECT EXISTS (SELECT 1 FROM event
                WHERE item = :item AND fence = :fence AND worker = :worker AND phase <> 'active')
