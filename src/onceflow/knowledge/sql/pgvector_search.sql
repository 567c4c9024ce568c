-- the nearest sections and all that are as near as the last of them, with their vectors: the caller scores again.
WITH scored AS MATERIALIZED (
  SELECT item, n, vector <#> $1::text::vector AS distance
    FROM onceflow.section_vector WHERE model = $2 AND vector_dims(vector) = $3),
bound AS (
  SELECT max(distance) + $5::float8 AS distance
    FROM (SELECT distance FROM scored ORDER BY distance LIMIT $4) AS nearest)
SELECT s.item, s.n, v.tie, v.vector::real[] AS vector
  FROM bound JOIN scored AS s ON s.distance <= bound.distance
  JOIN onceflow.section_vector AS v ON v.item = s.item AND v.n = s.n
