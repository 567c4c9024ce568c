-- renew: the deadline of a lease moves on, if the lease still holds.
UPDATE item SET deadline = :now + (
         SELECT deadline_ms + lease_ms FROM stage WHERE stage.pipeline = item.pipeline AND stage.stage = item.stage)
 WHERE id = :item AND (fence, ticket) = (:fence, :ticket) AND phase = 'active'
