-- how many items of a run have changed since then, as after a retry.
SELECT count(*) AS items FROM member AS m JOIN item AS i ON i.id = m.item
 WHERE m.run = :run AND i.updated_at > :since
