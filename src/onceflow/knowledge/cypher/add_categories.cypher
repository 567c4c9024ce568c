// categories, each once.
UNWIND $rows AS r MERGE (:Category {name: r.name})
