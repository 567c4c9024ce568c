// articles into their categories. The second MATCH stands behind a WITH:
// both in one clause are joined by reading every category for every row.
UNWIND $rows AS r MATCH (a:Article {id: r.id}) WITH a, r
MATCH (c:Category) WHERE c.name = r.name CREATE (a)-[:IN_CATEGORY]->(c)
