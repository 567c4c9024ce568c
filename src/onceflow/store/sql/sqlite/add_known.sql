-- add, what is there already: the items of these keys or of their aliases, and their place in the run.
SELECT json_group_array(json_array(
         k.key, item.id, EXISTS (SELECT 1 FROM member WHERE member.run = :run AND member.item = item.id)))
  FROM json_each(:keys) AS k
  JOIN item ON item.id = coalesce(
         (SELECT id FROM item AS i WHERE i.pipeline = :pipeline AND i.key = k.value),
         (SELECT alias.item FROM alias WHERE alias.pipeline = :pipeline AND alias.key = k.value))
