-- I8 the gate: it opened once, never early, and it is not missing.
SELECT r.gate_item AS item, r.id AS key, 'the gate opened ' || count(*) || ' times' AS detail
  FROM run AS r JOIN event AS e ON e.run = r.id AND e.kind = 'gate_opened'
 GROUP BY r.gate_item, r.id HAVING count(*) > 1
UNION ALL
SELECT CAST(NULL AS bigint), r.id, 'the run is settled but its gate added no item'
  FROM run AS r
 WHERE r.gate_stage IS NOT NULL AND r.settled_at IS NOT NULL
   AND NOT EXISTS (SELECT 1 FROM item AS i WHERE i.id = r.gate_item AND i.run = r.id)
UNION ALL
SELECT m.item, r.id, 'the gate opened while item ' || m.item || ' was not settled'
  FROM run AS r
  JOIN event AS g ON g.item = r.gate_item AND g.n = 1
  JOIN member AS m ON m.run = r.id AND m.since <= g.at  -- who joined later kept nothing shut
  JOIN event AS e ON e.item = m.item AND e.n = (
         SELECT max(last.n) FROM event AS last
          WHERE last.item = m.item AND last.seq < g.seq AND last.kind <> 'reopened')
 WHERE NOT (e.phase = 'done' OR e.phase IN ('failed', 'cancelled') AND r.gate = 'settled')
UNION ALL
SELECT CAST(NULL AS bigint), r.id, 'every item is settled, but the gate is still shut'
  FROM run AS r
 WHERE r.sealed = 1 AND r.settled_at IS NULL AND r.created_at < CAST(:now AS bigint) - :grace_ms
   AND (:grace_ms = 0 OR EXISTS (  -- somebody was there to open it
          SELECT 1 FROM worker AS w
           WHERE w.started_at < CAST(:now AS bigint) - :grace_ms AND w.beat_at > CAST(:now AS bigint) - 300000))
   AND NOT EXISTS (
     SELECT 1 FROM member AS m JOIN item AS i ON i.id = m.item
      WHERE m.run = r.id
        AND (i.phase IN ('waiting', 'ready', 'active') OR i.updated_at >= CAST(:now AS bigint) - :grace_ms
             OR r.gate = 'completed' AND i.phase <> 'done'))
