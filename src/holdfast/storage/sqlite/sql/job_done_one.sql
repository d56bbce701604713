-- As job_done, for one job.
update holdfast_job
   set state = 'done', outcome = 'done', result = :value, event_count = event_count + :counted,
       finished_at_ms = :finished_at_ms, lease_until_ms = null, suspect = 0, unacknowledged = 0,
       failure_class = null, failure_reason = null, failure_message = null, failure_traceback = null
 where seq = :key and state = 'running'
