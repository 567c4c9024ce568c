// the links of articles that were loaded again are told anew.
UNWIND $rows AS r MATCH (a:Article {id: r.id})-[e:LINKS_TO]->(:Article) DELETE e
