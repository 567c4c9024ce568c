-- claim, the answer: all leases in one value, so that the interpreter is asked once, not per row.
SELECT json_group_array(json_array(id, key, fence, attempt, generation, run, depth, deaths >= :deaths_max)) FROM (
  SELECT id, key, fence, attempt, generation, run, depth, deaths
    FROM item WHERE id IN (SELECT value FROM json_each(:ids)) ORDER BY priority, depth, id)
