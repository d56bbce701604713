-- Attempts and artifacts of a job.

-- name: artifact_read
-- Read one artifact with its bytes.
select name, data, media_type from holdfast_artifact where seq = :seq and name = :name;

-- name: artifact_write
-- Store artifacts, one for each row of values; an existing one of the same name is replaced.
insert into holdfast_artifact (seq, name, media_type, size, epoch, created_at_ms, data)
values (?, ?, ?, ?, ?, ?, ?)
on conflict (seq, name) do update
   set media_type = excluded.media_type, size = excluded.size, epoch = excluded.epoch,
       created_at_ms = excluded.created_at_ms, data = excluded.data;

-- name: artifacts_of_job
-- List the artifacts of a job by name, without their bytes.
select name, media_type, size, epoch, created_at_ms from holdfast_artifact where seq = :seq order by name;

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
