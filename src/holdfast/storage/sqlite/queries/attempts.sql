-- Attempts and artifacts of a job.

-- name: artifact_read
-- Read one artifact with its bytes.
select name, data, media_type from holdfast_artifact where seq = :seq and name = :name;

-- name: artifact_write
-- Store artifacts, one for each row of values; one of the same name is replaced.
insert into holdfast_artifact (seq, name, media_type, size, epoch, created_at_ms, data)
values (?, ?, ?, ?, ?, ?, ?)
on conflict (seq, name) do update
   set media_type = excluded.media_type, size = excluded.size, epoch = excluded.epoch,
       created_at_ms = excluded.created_at_ms, data = excluded.data;

-- name: artifacts_of_job
-- Read what artifacts a job has, by name.
select name, media_type, size, epoch, created_at_ms from holdfast_artifact where seq = :seq order by name;

-- name: attempt_insert
-- Keep attempts that ended while their job goes on, one for each row of values, unless they are kept already.
insert into holdfast_attempt (
    seq, lease_token, settle_digest, epoch, number, worker, incarnation, started_at_ms, ended_at_ms, outcome,
    failure_class, failure_reason, failure_message, failure_traceback
) values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
on conflict (seq, epoch) do nothing;

-- name: attempt_proof
-- Read under which token and with which digest a kept attempt was settled.
select lease_token, settle_digest from holdfast_attempt where seq = :seq and epoch = :epoch;

-- name: attempt_trim
-- Forget attempts of a job older than the newest so many, one job for each row of values.
delete from holdfast_attempt where seq = ? and epoch <= ?;

-- name: attempts_of_job
-- Read the kept attempts of one job, oldest first.
select epoch, number, worker, incarnation, started_at_ms, ended_at_ms, outcome,
       failure_class, failure_reason, failure_message, failure_traceback
  from holdfast_attempt where seq = :seq order by epoch;
