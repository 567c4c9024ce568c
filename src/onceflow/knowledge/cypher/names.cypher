// every title and every link of what is loaded.
MATCH (a:Article) WHERE a.loaded RETURN a.title, a.aliases, a.links
