-- Delete jobs.
delete from holdfast.job where seq = any (%(seqs)s::bigint[])
