-- Maintenance: due jobs, expired leases, passed deadlines, and the times of the next ones.

-- name: claim_next_times
-- Read when the next job becomes due, when the next lease may expire and when the next wake row is due.
select (select due_at_ms from holdfast.open_job where state = 'scheduled' order by due_at_ms limit 1),
       (select until_ms from holdfast.lease order by until_ms limit 1),
       (select at_ms from holdfast.wake order by at_ms limit 1);

-- name: jobs_due
-- Read some scheduled jobs that are due, earliest first, skipping locked ones.
select j.* from holdfast.open_job o
  join holdfast.job_row j on j.seq = o.seq
 where o.state = 'scheduled' and o.due_at_ms <= %(now)s and j.state = 'scheduled' and j.due_at_ms <= %(now)s
 order by o.due_at_ms, o.seq
 limit %(limit)s
/* lock: for update of j skip locked */;

-- name: jobs_expired
-- Read some running jobs whose lease has expired, skipping locked ones; those of the claim first that was to be looked at
-- first.
select * from holdfast.jobs_expired_1(%(now)s, %(limit)s, false /* lock: or true */);

-- name: jobs_expired_of_worker
-- Read some running jobs of one start of a worker whose lease has expired, skipping locked ones.
select j.* from holdfast.lease l
 cross join lateral unnest(l.seqs) as u (seq)
  join holdfast.job_row j on j.seq = u.seq
 where l.worker = %(worker)s and l.until_ms <= %(now)s and j.state = 'running' and j.worker = %(worker)s
   and j.incarnation = %(incarnation)s and j.lease_token = l.token and j.lease_until_ms <= %(now)s
 limit %(limit)s
/* lock: for update of j skip locked */;

-- name: jobs_past_deadline
-- Read some waiting jobs whose deadline has passed, earliest first, skipping locked ones.
select j.* from holdfast.open_job o
  join holdfast.job_row j on j.seq = o.seq
 where o.deadline_at_ms is not null and o.state in ('scheduled', 'blocked', 'dependent', 'parked', 'ready')
   and o.deadline_at_ms <= %(now)s
   and j.state in ('scheduled', 'blocked', 'dependent', 'parked', 'ready') and j.deadline_at_ms <= %(now)s
 order by o.deadline_at_ms
 limit %(limit)s
/* lock: for update of j skip locked */;

-- name: jobs_succeeding
-- Read and lock, in order, the blocked jobs that wait for any of these jobs to finish.
select * from holdfast.job_row
 where seq = any (array(select o.seq from holdfast.open_job o
                         where o.state = 'blocked' and o.predecessor = any (%(seqs)s::bigint[])))
   and state = 'blocked' and predecessor = any (%(seqs)s::bigint[])
 order by seq
/* lock: for update */;
