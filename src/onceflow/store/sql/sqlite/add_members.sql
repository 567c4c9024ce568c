-- add: these items belong to the run now.
INSERT INTO member (run, item) SELECT :run, value FROM json_each(:ids) WHERE true
ON CONFLICT DO NOTHING
