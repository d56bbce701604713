-- Write the ends of running jobs that succeeded: what they have in common once, and the result of each.
-- The plus before the state keeps the planner from going through all that are running.
update holdfast_job
   set state = 'done', outcome = 'done', result = r.value, event_count = event_count + :counted,
       finished_at_ms = :finished_at_ms, lease_until_ms = null, suspect = 0, unacknowledged = 0,
       failure_class = null, failure_reason = null, failure_message = null, failure_traceback = null
  from json_each(:results) r
 where seq = cast(r.key as integer) and +state = 'running'
