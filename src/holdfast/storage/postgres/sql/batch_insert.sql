-- Store new batches of sessions. One whose id somebody else has taken meanwhile is left out, which the count tells.
insert into holdfast.job (
    session, enqueue_seq, batch, route, seq, id, state, tenant, turn, priority, affinity, payload, headers, tags,
    enqueued_at_ms, due_at_ms, deadline_at_ms, max_attempts, backoff,
    dedupe_key, dedupe_kind, predecessor, digest, record_all, event_count
)
select * from unnest(
    %(c0)s::bigint[], %(c1)s::bigint[], %(c2)s::text[],
    %(c3)s::integer[], %(c4)s::bigint[], %(c5)s::text[], %(c6)s::text[], %(c7)s::text[], %(c8)s::text[],
    %(c9)s::integer[], %(c10)s::text[], %(c11)s::text[], %(c12)s::text[], %(c13)s::text[], %(c14)s::bigint[],
    %(c15)s::bigint[], %(c16)s::bigint[], %(c17)s::integer[], %(c18)s::text[], %(c19)s::text[], %(c20)s::text[],
    %(c21)s::bigint[], %(c22)s::bytea[], %(c23)s::smallint[], %(c24)s::integer[]
)
on conflict do nothing
