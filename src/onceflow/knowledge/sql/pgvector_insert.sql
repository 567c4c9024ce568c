-- the sections of articles, all of one embedding model.
INSERT INTO onceflow.section_vector (item, n, generation, tie, model, vector)
SELECT u.item, u.n, u.generation, u.tie, $5, u.vector::vector
  FROM unnest($1::bigint[], $2::integer[], $3::integer[], $4::bigint[], $6::text[])
       AS u (item, n, generation, tie, vector)
