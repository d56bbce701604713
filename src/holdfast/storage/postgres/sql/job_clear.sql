-- Write jobs that are suspect no more, but only onto the epoch each was decided for.
update holdfast.job j
   set suspect = v.suspect, failure_reason = v.failure_reason, failure_message = v.failure_message
  from unnest(%(c0)s::smallint[], %(c1)s::text[], %(c2)s::text[], %(c3)s::bigint[], %(c4)s::integer[])
       as v (suspect, failure_reason, failure_message, seq, epoch)
 where j.seq = v.seq and j.epoch = v.epoch
