-- finish, the guard: which leases still hold, and how many events their items have.
SELECT json_group_array(json_array(f.value ->> 0, item.version))
  FROM json_each(:rows) AS f JOIN item ON item.id = f.value ->> 1
 WHERE item.fence = f.value ->> 2 AND item.stage = f.value ->> 3 AND item.phase = 'active'
