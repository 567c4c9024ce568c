-- texts in progress whose attempts are over: their results say it all, or somebody else begins anew.
DELETE FROM partial
 WHERE NOT EXISTS (SELECT 1 FROM item AS i
                    WHERE i.id = partial.item AND i.fence = partial.fence AND i.phase = 'active')
