-- Delete the artifacts of jobs.
delete from holdfast.artifact where seq = any (%(seqs)s::bigint[])
