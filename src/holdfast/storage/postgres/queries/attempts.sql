-- Attempts and artifacts of a job.

-- name: artifact_read
-- Read one artifact with its bytes.
select name, data, media_type from holdfast.artifact where seq = %(seq)s and name = %(name)s;

-- name: artifact_write
-- Store one artifact; an existing one of the same name is replaced. One statement per artifact, with its bytes
-- unencoded.
insert into holdfast.artifact (seq, name, media_type, size, epoch, created_at_ms, data)
values (%(c0)s, %(c1)s, %(c2)s, %(c3)s, %(c4)s, %(c5)s, %(c6)b)
on conflict (seq, name) do update
   set media_type = excluded.media_type, size = excluded.size, epoch = excluded.epoch,
       created_at_ms = excluded.created_at_ms, data = excluded.data;

-- name: artifacts_of_job
-- List the artifacts of a job by name, without their bytes.
select name, media_type, size, epoch, created_at_ms from holdfast.artifact where seq = %(seq)s order by name;

-- name: attempt_insert
-- Store attempts that ended before their job finished, unless they are stored already.
insert into holdfast.attempt (
    seq, lease_token, settle_digest, epoch, number, worker, incarnation, started_at_ms, ended_at_ms, outcome,
    failure_class, failure_reason, failure_message, failure_traceback
)
select * from unnest(
    %(c0)s::bigint[], %(c1)s::text[], %(c2)s::text[], %(c3)s::integer[], %(c4)s::integer[], %(c5)s::text[],
    %(c6)s::text[], %(c7)s::bigint[], %(c8)s::bigint[], %(c9)s::text[], %(c10)s::text[], %(c11)s::text[],
    %(c12)s::text[], %(c13)s::text[]
)
on conflict (seq, epoch) do nothing;

-- name: attempt_proof
-- Read the lease token and the digest with which a stored attempt was settled.
select lease_token, settle_digest from holdfast.attempt where seq = %(seq)s and epoch = %(epoch)s;

-- name: attempt_trim
-- Delete all but the newest attempts of jobs.
delete from holdfast.attempt a
 using unnest(%(c0)s::bigint[], %(c1)s::integer[]) as v (seq, epoch)
 where a.seq = v.seq and a.epoch <= v.epoch;

-- name: attempts_of_job
-- Read the stored attempts of one job, oldest first.
select epoch, number, worker, incarnation, started_at_ms, ended_at_ms, outcome,
       failure_class, failure_reason, failure_message, failure_traceback
  from holdfast.attempt where seq = %(seq)s order by epoch;
