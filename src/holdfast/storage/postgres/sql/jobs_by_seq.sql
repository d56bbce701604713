-- Read jobs by their numbers, locked in order for what is decided next.
select * from holdfast.job_row where seq = any (%(seqs)s::bigint[]) order by seq /* lock: for update */
