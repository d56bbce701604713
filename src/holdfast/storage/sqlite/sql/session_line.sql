-- Read some batches of a session's line in enqueue order, those that a claim may meet.
select seq, enqueue_seq, state, epoch, route, batch from holdfast_job
 where session = :session and session is not null and (state = 'ready' or (state = 'scheduled' and epoch > 0)) and enqueue_seq > :after
 order by enqueue_seq
 limit :limit
