-- Write claims: what they have in common once, what differs by job, but only onto the epoch each was decided for.
update holdfast.job j
   set state = 'running', epoch = v.epoch, attempt = v.attempt, claim_place = v.claim_place,
       event_count = v.event_count, worker = %(worker)s, incarnation = %(incarnation)s,
       lease_token = %(lease_token)s, lease_until_ms = %(lease_until_ms)s, started_at_ms = %(started_at_ms)s,
       outcome = null, settle_digest = null, phase = null, percent = null
  from unnest(
    %(rows_0)s::bigint[], %(rows_1)s::integer[], %(rows_2)s::integer[], %(rows_3)s::integer[],
    %(rows_4)s::integer[], %(rows_5)s::integer[]
  ) as v (seq, epoch_before, epoch, attempt, claim_place, event_count)
 where j.seq = v.seq and j.epoch = v.epoch_before
