-- how many of these keys are items already.
SELECT count(*) FROM item WHERE key IN (SELECT value FROM json_each(:keys))
