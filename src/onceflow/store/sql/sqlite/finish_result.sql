-- finish, one compressed result. A second result of one stage and generation is refused.
INSERT INTO result (item, stage, generation, at, body) VALUES (:item, :stage, :generation, :now, :body)
