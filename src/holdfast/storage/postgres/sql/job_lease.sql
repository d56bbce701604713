-- Extend leases and write whether they are acknowledged, but only of the claim they were asked for.
update holdfast.job j set lease_until_ms = v.lease_until_ms, unacknowledged = v.unacknowledged
  from unnest(%(c0)s::bigint[], %(c1)s::smallint[], %(c2)s::bigint[], %(c3)s::integer[])
       as v (lease_until_ms, unacknowledged, seq, epoch)
 where j.seq = v.seq and j.epoch = v.epoch
