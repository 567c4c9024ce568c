-- the pipelines this database knows, with the names of their states.
SELECT name, states FROM pipeline ORDER BY name
