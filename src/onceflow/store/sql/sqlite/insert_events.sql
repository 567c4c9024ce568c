-- the history: events of items, numbered without a gap by their items' versions.
INSERT INTO event (at, kind, item, n, run, stage, next_stage, phase, generation, fence, attempt,
                   worker, ms, data)
SELECT :now, e.value ->> 0, e.value ->> 1, e.value ->> 2, e.value ->> 3, e.value ->> 4, e.value ->> 5,
       e.value ->> 6, e.value ->> 7, e.value ->> 8, e.value ->> 9, e.value ->> 10, e.value ->> 11,
       e.value ->> 12
  FROM json_each(:rows) AS e
