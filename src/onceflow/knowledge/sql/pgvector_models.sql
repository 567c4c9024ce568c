-- how many sections there are of each embedding model.
SELECT model, count(*) AS sections FROM onceflow.section_vector GROUP BY model ORDER BY 2 DESC, 1
