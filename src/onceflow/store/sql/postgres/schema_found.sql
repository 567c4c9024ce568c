-- what a database has under our name.
SELECT EXISTS (SELECT 1 FROM pg_namespace WHERE nspname = 'onceflow') AS schema,
       (SELECT count(*) FROM pg_attribute AS a
         WHERE a.attrelid = to_regclass('onceflow.meta') AND a.attname IN ('name', 'value')
           AND NOT a.attisdropped) = 2 AS meta
