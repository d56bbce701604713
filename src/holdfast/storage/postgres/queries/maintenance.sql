-- Maintenance: due jobs, expired leases, passed deadlines, and the times of the next ones.

-- name: claim_next_times
-- Read when the next job becomes due, when the next lease expires and when the next wake row is due.
select (select due_at_ms from holdfast.job where state = 'scheduled' order by due_at_ms limit 1),
       (select lease_until_ms from holdfast.job where state = 'running' order by lease_until_ms limit 1),
       (select at_ms from holdfast.wake order by at_ms limit 1);

-- name: jobs_due
-- Read some scheduled jobs that are due, earliest first, skipping locked ones.
select * from holdfast.job_row
 where state = 'scheduled' and due_at_ms <= %(now)s
 order by due_at_ms, seq
 limit %(limit)s
/* lock: for update skip locked */;

-- name: jobs_expired
-- Read some running jobs whose lease has expired, earliest first, skipping locked ones.
select * from holdfast.job_row
 where state = 'running' and lease_until_ms <= %(now)s
 order by lease_until_ms
 limit %(limit)s
/* lock: for update skip locked */;

-- name: jobs_expired_of_worker
-- Read some running jobs of one start of a worker whose lease has expired, skipping locked ones.
select * from holdfast.job_row
 where state = 'running' and worker = %(worker)s and incarnation = %(incarnation)s and lease_until_ms <= %(now)s
 limit %(limit)s
/* lock: for update skip locked */;

-- name: jobs_past_deadline
-- Read some waiting jobs whose deadline has passed, earliest first, skipping locked ones.
select * from holdfast.job_row
 where deadline_at_ms is not null and state in ('scheduled', 'blocked', 'dependent', 'parked', 'ready') and deadline_at_ms <= %(now)s
 order by deadline_at_ms
 limit %(limit)s
/* lock: for update skip locked */;

-- name: jobs_succeeding
-- Read and lock, in order, the blocked jobs that wait for any of these jobs to finish.
select * from holdfast.job_row
 where state = 'blocked' and predecessor = any (%(seqs)s::bigint[])
 order by seq
/* lock: for update */;
