-- forget the sections of these articles.
DELETE FROM onceflow.section_vector WHERE item = ANY ($1::bigint[])
