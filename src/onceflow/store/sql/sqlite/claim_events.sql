-- claim, its history: one event for each lease given.
INSERT INTO event (at, kind, item, n, run, stage, phase, generation, fence, attempt, worker, data)
SELECT :now, 'claimed', id, version, run, stage, phase, generation, fence, attempt, worker, :data
  FROM item WHERE id IN (SELECT value FROM json_each(:ids)) ORDER BY priority, depth, id
