-- The output streams of jobs.

-- name: output_after
-- Read some chunks of a job's output after a number, in order.
select number, attempt, epoch, at_ms, data from holdfast_output
 where seq = :seq and number > :after
 order by number
 limit :limit;

-- name: output_append
-- Append chunks, one for each row of values.
insert into holdfast_output (seq, number, epoch, attempt, part, size, at_ms, data)
values (?, ?, ?, ?, ?, ?, ?, ?);

-- name: output_ends
-- Read the last chunk of each of some jobs that have output, without its text.
select o.seq, o.number, o.epoch, o.part, o.size
  from json_each(:seqs) s
  join holdfast_output o
    on o.seq = s.value and o.number = (select max(l.number) from holdfast_output l where l.seq = s.value);

-- name: output_job
-- Read what a reader of a job's output needs of the job: number, tenant, state, deadline.
select seq, tenant, (select name from holdfast_state where number = state), deadline_at_ms from holdfast_job where id = :id;

-- name: outputs_delete
-- Delete the output of jobs.
delete from holdfast_output where seq in (select value from json_each(:seqs));
