-- how the newest attempts ended: a bounded look at the end of the history, whatever its length.
SELECT i.pipeline, e.stage, e.kind, e.item, e.fence, e.attempt, e.ms, e.at
  FROM event AS e JOIN item AS i ON i.id = e.item
 WHERE e.seq > (SELECT coalesce(max(x.seq), 0) FROM event AS x) - CAST(:most AS bigint)
   AND e.stage IS NOT NULL
   AND e.kind NOT IN ('added', 'claimed', 'gate_opened', 'triggered', 'reopened', 'cancelled', 'released')
 ORDER BY e.seq
