-- forget: pieces of work of a stage that has its result now.
DELETE FROM part WHERE item = :item AND stage = :stage
