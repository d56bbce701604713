-- Store new jobs. One whose id or key somebody else has taken meanwhile is left out, which the count tells.
insert into holdfast.job (
    route, seq, id, state, tenant, turn, priority, affinity, payload, headers, tags,
    enqueued_at_ms, due_at_ms, deadline_at_ms, max_attempts, backoff,
    dedupe_key, dedupe_kind, predecessor, digest, record_all, event_count
)
select * from unnest(
    %(c0)s::integer[], %(c1)s::bigint[], %(c2)s::text[], %(c3)s::text[], %(c4)s::text[], %(c5)s::text[],
    %(c6)s::integer[], %(c7)s::text[], %(c8)s::text[], %(c9)s::text[], %(c10)s::text[], %(c11)s::bigint[],
    %(c12)s::bigint[], %(c13)s::bigint[], %(c14)s::integer[], %(c15)s::text[], %(c16)s::text[], %(c17)s::text[],
    %(c18)s::bigint[], %(c19)s::bytea[], %(c20)s::smallint[], %(c21)s::integer[]
)
on conflict do nothing
