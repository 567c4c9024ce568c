-- which schema the extension is in, if it is there; whether it could be.
SELECT (SELECT quote_ident(n.nspname) FROM pg_extension AS e JOIN pg_namespace AS n ON n.oid = e.extnamespace
         WHERE e.extname = 'vector') AS schema,
       EXISTS (SELECT 1 FROM pg_available_extensions WHERE name = 'vector') AS available,
       to_regclass('onceflow.section_vector') IS NOT NULL AS made
