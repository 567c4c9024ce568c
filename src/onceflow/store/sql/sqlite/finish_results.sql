-- finish, the short results in one value. A second result of one stage and generation is refused.
INSERT INTO result (item, stage, generation, at, body)
SELECT r.value ->> 0, r.value ->> 1, r.value ->> 2, :now, CAST(r.value ->> 3 AS BLOB)
  FROM json_each(:rows) AS r
