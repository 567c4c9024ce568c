-- finish, the guard: which leases still hold. `held` lists their items, fences and tickets.
SELECT json_group_array(item.id)
  FROM json_each(:held) AS h CROSS JOIN item  -- CROSS: the leases lead, each finds its item
 WHERE item.id = h.value ->> 0
   AND (item.fence, item.ticket) = (h.value ->> 1, h.value ->> 2)
   AND item.stage = :from_stage AND item.phase = 'active'
