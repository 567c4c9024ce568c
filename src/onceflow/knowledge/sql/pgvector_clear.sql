-- forget every section: the index is made again from the first event.
DELETE FROM onceflow.section_vector
