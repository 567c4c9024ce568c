// every name and every link of what is loaded.
MATCH (a:Article) WHERE a.generation > 0
RETURN a.id, a.title, a.aliases, a.links, a.same_as
