-- how many articles and sections there are.
SELECT count(DISTINCT item) AS articles, count(*) AS sections FROM onceflow.section_vector
