-- Read some batches of a session's line in enqueue order, those that a claim may meet.
select seq, enqueue_seq, state, epoch, route, batch from holdfast.job
 where session = %(session)s and session is not null and (state = 'ready' or (state = 'scheduled' and epoch > 0)) and enqueue_seq > %(after)s
 order by enqueue_seq
 limit %(limit)s
