-- Write the ends of jobs that succeeded: the moment once, what differs by job, but only onto the epoch of its claim.
update holdfast.job j
   set state = 'done', outcome = 'done', result = v.result, settle_digest = v.settle_digest,
       event_count = v.event_count, finished_at_ms = %(finished_at_ms)s, lease_until_ms = null, suspect = 0,
       failure_class = null, failure_reason = null, failure_message = null, failure_traceback = null
  from unnest(
    %(rows_0)s::bigint[], %(rows_1)s::integer[], %(rows_2)s::text[], %(rows_3)s::text[], %(rows_4)s::integer[]
  ) as v (seq, epoch_before, result, settle_digest, event_count)
 where j.seq = v.seq and j.epoch = v.epoch_before
