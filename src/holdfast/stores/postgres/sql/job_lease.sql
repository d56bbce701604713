-- Extend leases, but only of the claim they were asked for.
update holdfast.job j set lease_until_ms = v.lease_until_ms
  from unnest(%(c0)s::bigint[], %(c1)s::bigint[], %(c2)s::integer[]) as v (lease_until_ms, seq, epoch)
 where j.seq = v.seq and j.epoch = v.epoch
