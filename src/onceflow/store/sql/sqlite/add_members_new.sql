-- add: these new items belong to the run that they were made for.
INSERT INTO member (run, item, since, depth) SELECT run, id, :now, depth FROM item WHERE id BETWEEN :first AND :last
