-- finish, the short results in one value. A second result of one stage and generation is refused.
INSERT INTO result (item, stage, generation, at, body)
SELECT CAST(b.key AS INTEGER), :stage, :generation, :now, CAST(b.value AS BLOB)
  FROM json_each(:bodies) AS b
