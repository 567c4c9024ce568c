-- add: these items belong to the run now, each so deep.
INSERT INTO member (run, item, since, depth) SELECT :run, value ->> 0, :now, value ->> 1 FROM json_each(:rows) WHERE true
ON CONFLICT DO NOTHING
