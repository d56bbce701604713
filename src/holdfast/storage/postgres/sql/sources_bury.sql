-- Note of jobs that are about to be deleted in which state and when, where a source key outlives them.
update holdfast.session_source set state = %(state)s, deleted_at_ms = %(now)s where seq = any (%(seqs)s::bigint[])
