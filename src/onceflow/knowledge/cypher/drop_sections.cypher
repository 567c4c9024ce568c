// the sections of articles that were loaded again go.
UNWIND $rows AS r MATCH (a:Article {id: r.id})-[:HAS_SECTION]->(s:Section) DETACH DELETE s
