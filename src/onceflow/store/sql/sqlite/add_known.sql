-- add, what is there already: the items of these keys or of their aliases, and how deep they are in the run.
SELECT json_group_array(json_array(
         k.key, i.id, i.depth, (SELECT member.depth FROM member WHERE member.run = :run AND member.item = i.id)))
  FROM json_each(:keys) AS k CROSS JOIN item AS i  -- CROSS: the keys lead, each finds its item
 WHERE i.id = coalesce(
         (SELECT id FROM item AS o WHERE o.pipeline = :pipeline AND o.key = k.value),
         (SELECT alias.item FROM alias WHERE alias.pipeline = :pipeline AND alias.key = k.value))
