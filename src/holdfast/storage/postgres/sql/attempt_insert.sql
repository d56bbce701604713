-- Keep attempts that ended while their job goes on, unless they are kept already.
insert into holdfast.attempt (
    seq, lease_token, settle_digest, epoch, number, worker, incarnation, started_at_ms, ended_at_ms, outcome,
    failure_class, failure_reason, failure_message, failure_traceback
)
select * from unnest(
    %(c0)s::bigint[], %(c1)s::text[], %(c2)s::text[], %(c3)s::integer[], %(c4)s::integer[], %(c5)s::text[],
    %(c6)s::text[], %(c7)s::bigint[], %(c8)s::bigint[], %(c9)s::text[], %(c10)s::text[], %(c11)s::text[],
    %(c12)s::text[], %(c13)s::text[]
)
on conflict (seq, epoch) do nothing
