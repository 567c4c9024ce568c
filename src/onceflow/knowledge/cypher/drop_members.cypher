// the categories of articles that were loaded again are told anew.
UNWIND $rows AS r MATCH (a:Article {id: r.id})-[e:IN_CATEGORY]->(:Category) DELETE e
