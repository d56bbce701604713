-- Read which of some source keys a session has seen, with what identifies the batch of each.
select source_key, seq, id, route, batch, enqueue_seq, enqueued_at_ms, state, deleted_at_ms
  from holdfast.session_source
 where session = %(session)s and source_key = any (%(keys)s::text[])
