// what is known of articles that were loaded.
UNWIND $rows AS r MATCH (a:Article {title: r.title})
SET a.loaded = true, a.generation = r.generation, a.page_id = r.page_id, a.revision = r.revision,
    a.url = r.url, a.aliases = r.aliases[2:], a.links = r.links[2:],
    a.processed_at = epoch_ms(r.at)
