-- Ended attempts of a job.

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
