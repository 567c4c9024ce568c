// one edge from article to article, if there is none yet: a link may have two names of its end.
UNWIND $rows AS r MATCH (a:Article {id: r.source}) WITH a, r
MATCH (b:Article) WHERE b.id = r.target MERGE (a)-[:LINKS_TO]->(b)
