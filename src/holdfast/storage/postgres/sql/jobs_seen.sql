-- Read jobs by their numbers without a lock, for those who have locked their session already.
select * from holdfast.job_row where seq = any (%(seqs)s::bigint[])
