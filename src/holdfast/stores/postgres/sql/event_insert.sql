-- Append to the event log.
insert into holdfast.event (name, at_ms, job_id, number, kind, lane, tenant, tags, details)
select * from unnest(
    %(c0)s::text[], %(c1)s::bigint[], %(c2)s::text[], %(c3)s::integer[], %(c4)s::text[], %(c5)s::text[],
    %(c6)s::text[], %(c7)s::text[], %(c8)s::text[]
)
