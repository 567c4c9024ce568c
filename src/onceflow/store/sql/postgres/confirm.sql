-- add_one, confirmed: nothing changes. It is still there if the server has not crashed meanwhile, and the commit of
-- a transaction that has locked a row waits until the disk has all that was committed before.
SELECT id FROM item WHERE id = :item AND run = :run FOR KEY SHARE
