-- a finished attempt's text in progress is not needed any more.
DELETE FROM partial WHERE item IN (SELECT value FROM json_each(:ids))
