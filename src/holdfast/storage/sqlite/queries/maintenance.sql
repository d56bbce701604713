-- Maintenance: due jobs, expired leases, passed deadlines, and the times of the next ones.

-- name: claim_next_times
-- Read when the next job becomes due, when the next lease expires and when the next wake row is due.
select (select due_at_ms from holdfast_job where state = {scheduled} and due_at_ms > 0 order by due_at_ms limit 1),
       (select ends_at_ms from holdfast_job where state = {running} and ends_at_ms > 0 order by ends_at_ms limit 1),
       (select at_ms from holdfast_wake where at_ms >= 0 order by at_ms limit 1);

-- name: jobs_due
-- Read some scheduled jobs that are due, earliest first.
select * from holdfast_job_row
 where state_number = {scheduled} and due_at_ms <= :now
 order by due_at_ms, seq
 limit :limit;

-- name: jobs_expired
-- Read some running jobs whose lease has expired, earliest first.
select * from holdfast_job_row
 where state_number = {running} and ends_at_ms <= :now
 order by ends_at_ms
 limit :limit;

-- name: jobs_expired_of_worker
-- Read some running jobs of one start of a worker whose lease has expired.
select * from holdfast_job_row
 where state_number = {running} and ends_at_ms <= :now and worker = :worker and incarnation = :incarnation
 limit :limit;

-- name: jobs_past_deadline
-- Read some waiting jobs whose deadline has passed, earliest first.
select * from holdfast_job_row
 where deadline_at_ms is not null and rare_state < {running} and deadline_at_ms <= :now
 order by deadline_at_ms
 limit :limit;

-- name: jobs_succeeding
-- Read the blocked jobs that wait for any of these jobs to finish.
select * from holdfast_job_row
 where rare_state = {blocked} and predecessor in (select value from json_each(:seqs));
