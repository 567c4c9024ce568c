-- keys whose short form is not what this server makes of them: none, unless they were carried over wrongly.
SELECT count(*) AS wrong FROM alias AS a JOIN item AS i ON i.id = a.item
 WHERE a.short_key <> shorten(coalesce(a.key, i.key))
