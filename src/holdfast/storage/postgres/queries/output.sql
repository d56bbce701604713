-- The output streams of jobs.

-- name: output_after
-- Read some chunks of a job's output after a number, in order.
select number, attempt, epoch, at_ms, data from holdfast.output
 where seq = %(seq)s and number > %(after)s
 order by number
 limit %(limit)s;

-- name: output_append
-- Append chunks.
insert into holdfast.output (seq, number, epoch, attempt, part, size, at_ms, data)
select * from unnest(
    %(c0)s::bigint[], %(c1)s::bigint[], %(c2)s::integer[], %(c3)s::integer[], %(c4)s::bigint[], %(c5)s::bigint[],
    %(c6)s::bigint[], %(c7)s::text[]
);

-- name: output_ends
-- Read the last chunk of each of some jobs that have output, without its text.
select s.seq, l.number, l.epoch, l.part, l.size
  from unnest(%(seqs)s::bigint[]) as s (seq)
 cross join lateral (
    select o.number, o.epoch, o.part, o.size from holdfast.output o
     where o.seq = s.seq order by o.number desc limit 1
 ) l;

-- name: output_job
-- Read what a reader of a job's output needs of the job: number, tenant, state, deadline.
select seq, tenant, state, deadline_at_ms from holdfast.job where id = %(id)s;

-- name: outputs_delete
-- Delete the output of jobs.
delete from holdfast.output where seq = any (%(seqs)s::bigint[]);
