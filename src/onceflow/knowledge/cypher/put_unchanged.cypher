// articles that were looked at again and are as they were.
UNWIND $rows AS r MATCH (a:Article {id: r.id})
SET a.generation = r.generation, a.processed_at = epoch_ms(r.at)
