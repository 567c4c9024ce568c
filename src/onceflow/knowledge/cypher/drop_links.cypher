// the links of articles that were loaded again are told anew.
UNWIND $rows AS r MATCH (a:Article {title: r.title})-[e:LINKS_TO]->(:Article) DELETE e
