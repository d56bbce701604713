-- Read the blocked jobs that wait for any of these to end, locked in order for being freed.
select * from holdfast.job_row
 where state = 'blocked' and predecessor = any (%(seqs)s::bigint[])
 order by seq
/* lock: for update */
