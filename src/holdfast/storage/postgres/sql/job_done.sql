-- Write the ends of running jobs that succeeded: what they have in common once, and the result of each. The state is hidden
-- from the planner, which would else go through all running jobs rather than straight to these.
update holdfast.job j
   set state = 'done', outcome = 'done', result = r.result, event_count = j.event_count + %(counted)s::integer,
       finished_at_ms = %(finished_at_ms)s, lease_until_ms = null, suspect = 0, unacknowledged = 0,
       failure_class = null, failure_reason = null, failure_message = null, failure_traceback = null
  from unnest(%(results_0)s::bigint[], %(results_1)s::text[]) as r (seq, result)
 where j.seq = r.seq and coalesce(j.state, '') = 'running'
