-- Delete the attempts of jobs.
delete from holdfast.attempt where seq = any (%(seqs)s::bigint[])
