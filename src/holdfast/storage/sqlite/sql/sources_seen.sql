-- Read which of some source keys a session has seen, with what identifies the batch of each.
select source_key, seq, id, route, batch, enqueue_seq, enqueued_at_ms, state, deleted_at_ms
  from holdfast_session_source
 where session = :session and source_key in (select value from json_each(:keys))
