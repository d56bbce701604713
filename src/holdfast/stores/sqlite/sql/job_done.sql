-- Write the ends of jobs that succeeded: the moment once, what differs by job, but only onto the epoch of its claim.
update holdfast_job
   set state = 'done', outcome = 'done', result = json_extract(r.value, '$[2]'),
       settle_digest = json_extract(r.value, '$[3]'), event_count = json_extract(r.value, '$[4]'),
       finished_at_ms = :finished_at_ms, lease_until_ms = null, suspect = 0,
       failure_class = null, failure_reason = null, failure_message = null, failure_traceback = null
  from json_each(:rows) r
 where seq = json_extract(r.value, '$[0]') and epoch = json_extract(r.value, '$[1]')
