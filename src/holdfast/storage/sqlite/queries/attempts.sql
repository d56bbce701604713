-- Ended attempts of a job.

-- name: attempt_insert
-- Store attempts that ended before their job finished, one for each row of values, unless they are stored already.
insert into holdfast_attempt (
    seq, lease_token, settle_digest, epoch, number, worker, incarnation, started_at_ms, ended_at_ms, outcome,
    failure_class, failure_reason, failure_message, failure_traceback
) values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
on conflict (seq, epoch) do nothing;

-- name: attempt_proof
-- Read the lease token and the digest with which a stored attempt was settled.
select lease_token, settle_digest from holdfast_attempt where seq = :seq and epoch = :epoch;

-- name: attempt_trim
-- Delete all but the newest attempts of a job, one job for each row of values.
delete from holdfast_attempt where seq = ? and epoch <= ?;

-- name: attempts_of_job
-- Read the stored attempts of one job, oldest first.
select epoch, number, worker, incarnation, started_at_ms, ended_at_ms, outcome,
       failure_class, failure_reason, failure_message, failure_traceback
  from holdfast_attempt where seq = :seq order by epoch;
