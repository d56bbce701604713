-- Note of jobs that are about to be deleted in which state and when, where a source key outlives them.
update holdfast_session_source set state = :state, deleted_at_ms = :now
 where seq in (select value from json_each(:seqs))
