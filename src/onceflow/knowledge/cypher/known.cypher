// of these articles: which are loaded, in which generation, and what they were linked by.
UNWIND $rows AS r MATCH (a:Article {title: r.title}) WHERE a.loaded
RETURN a.title, a.generation, a.aliases, a.links
