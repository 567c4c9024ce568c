-- every item with how often it is a member of a run.
SELECT i.id, i.key, i.stage, i.phase, i.generation, i.run,
       (SELECT count(*) FROM member AS m WHERE m.item = i.id) AS runs
  FROM item AS i ORDER BY i.id
