// what is known of articles that were loaded; one that is only a name of another has `same_as`.
UNWIND $rows AS r MATCH (a:Article {id: r.id})
SET a.loaded = (r.same_as = ''), a.same_as = CASE WHEN r.same_as = '' THEN NULL ELSE r.same_as END,
    a.generation = r.generation, a.page_id = r.page_id, a.revision = r.revision, a.url = r.url,
    a.aliases = r.aliases[2:], a.links = r.links[2:], a.processed_at = epoch_ms(r.at)
