-- Acknowledge claims where they are still held. The state is hidden from the planner, which would else go through all
-- running jobs rather than straight to these.
update holdfast.job j set unacknowledged = 0
  from unnest(%(c0)s::bigint[], %(c1)s::integer[], %(c2)s::text[], %(c3)s::bigint[])
       as v (seq, epoch, lease_token, lease_now)
 where j.seq = v.seq and j.epoch = v.epoch and j.lease_token = v.lease_token
   and coalesce(j.state, '') = 'running' and j.lease_until_ms > v.lease_now
