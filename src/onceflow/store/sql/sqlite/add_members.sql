-- add: these items belong to the run now.
INSERT INTO member (run, item, since) SELECT :run, value, :now FROM json_each(:ids) WHERE true
ON CONFLICT DO NOTHING
