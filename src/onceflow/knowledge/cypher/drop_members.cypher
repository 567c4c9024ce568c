// the categories of articles that were loaded again are told anew.
UNWIND $rows AS r MATCH (a:Article {title: r.title})-[e:IN_CATEGORY]->(:Category) DELETE e
