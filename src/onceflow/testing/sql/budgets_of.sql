-- the budgets of an item's runs.
SELECT r.accepted, r.max_items FROM member AS m JOIN run AS r ON r.id = m.run WHERE m.item = :item
