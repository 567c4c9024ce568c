// where articles are on their way; new ones are not loaded yet. An article may get another title.
UNWIND $rows AS r MERGE (a:Article {id: r.id})
ON CREATE SET a.loaded = false, a.generation = 0
SET a.title = r.title, a.expansion_state = r.state, a.expansion_depth = r.depth,
    a.retry_count = r.retry_count,
    a.error = CASE WHEN r.error = '' THEN NULL ELSE r.error END,
    a.claimed_at = CASE WHEN r.claimed_at < 0 THEN NULL ELSE epoch_ms(r.claimed_at) END,
    a.processed_at = CASE WHEN r.processed_at < 0 THEN a.processed_at
                          ELSE epoch_ms(r.processed_at) END
