-- Remember the source keys of new batches.
insert into holdfast_session_source (session, source_key, seq, id, route, batch, enqueue_seq, enqueued_at_ms)
values (?, ?, ?, ?, ?, ?, ?, ?)
