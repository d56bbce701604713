-- Store new jobs. One whose id or key somebody else has taken meanwhile is left out, which the count tells.
insert into holdfast.job (
    route, seq, id, state, tenant, turn, priority, affinity, payload, headers, tags,
    enqueued_at_ms, due_at_ms, deadline_at_ms, finished_at_ms, attempt, max_attempts, backoff, epoch,
    cancel_requested, suspect, deferrals, releases, dedupe_key, dedupe_kind, predecessor, digest,
    record_all, event_count
)
select * from unnest(
    %(c0)s::integer[], %(c1)s::bigint[], %(c2)s::text[], %(c3)s::text[], %(c4)s::text[], %(c5)s::text[],
    %(c6)s::integer[], %(c7)s::text[], %(c8)s::text[], %(c9)s::text[], %(c10)s::text[], %(c11)s::bigint[],
    %(c12)s::bigint[], %(c13)s::bigint[], %(c14)s::bigint[], %(c15)s::integer[], %(c16)s::integer[],
    %(c17)s::text[], %(c18)s::integer[], %(c19)s::smallint[], %(c20)s::smallint[], %(c21)s::integer[],
    %(c22)s::integer[], %(c23)s::text[], %(c24)s::text[], %(c25)s::bigint[], %(c26)s::bytea[],
    %(c27)s::smallint[], %(c28)s::integer[]
)
on conflict do nothing
