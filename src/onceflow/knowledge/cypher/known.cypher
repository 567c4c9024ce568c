// of these articles: the generation that is here, and which names and links it had.
UNWIND $rows AS r MATCH (a:Article {id: r.id}) WHERE a.generation > 0
RETURN a.id, a.generation, a.aliases, a.links, a.same_as
