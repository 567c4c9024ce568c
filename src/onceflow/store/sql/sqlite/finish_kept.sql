-- finish, the guard: which leases still hold. `held` maps items to fences.
SELECT json_group_array(item.id)
  FROM json_each(:held) AS h CROSS JOIN item  -- CROSS: the leases lead, each finds its item
 WHERE item.id = CAST(h.key AS INTEGER)
   AND item.fence = h.value AND item.stage = :from_stage AND item.phase = 'active'
