-- Remember the source keys of new batches.
insert into holdfast.session_source (session, source_key, seq, id, route, batch, enqueue_seq, enqueued_at_ms)
select * from unnest(
    %(c0)s::bigint[], %(c1)s::text[], %(c2)s::bigint[], %(c3)s::text[], %(c4)s::integer[], %(c5)s::text[],
    %(c6)s::bigint[], %(c7)s::bigint[]
)
