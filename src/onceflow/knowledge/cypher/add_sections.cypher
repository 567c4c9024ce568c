// the sections of articles.
UNWIND $rows AS r MATCH (a:Article {id: r.article})
CREATE (a)-[:HAS_SECTION]->(:Section {id: r.id, title: r.title, n: r.n, level: r.level,
                                      heading: r.heading, anchor: r.anchor, text: r.text})
