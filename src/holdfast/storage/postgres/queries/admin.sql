-- Changes by operators: priority, kinds.

-- name: job_priority
-- Change the priority of a job.
with changed as (
    update holdfast.job set priority = %(priority)s, event_count = %(event_count)s where seq = %(seq)s
 returning seq, priority
),
opened as (
    update holdfast.open_job o set priority = c.priority from changed c where o.seq = c.seq
)
update holdfast.ready_job r set priority = c.priority from changed c where r.seq = c.seq;

-- name: jobs_waiting_on_routes
-- Find the next waiting jobs of some routes in enqueue order, for iterating over all of them in read transactions.
(select seq from holdfast.ready_job
  where seq > %(after)s and route = any (%(routes)s::integer[])
  order by seq
  limit %(limit)s)
union all
(select seq from holdfast.open_job
  where seq > %(after)s and state in ('scheduled', 'blocked', 'dependent', 'parked') and route = any (%(routes)s::integer[])
  order by seq
  limit %(limit)s)
 order by seq
 limit %(limit)s;
