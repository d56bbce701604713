-- Read the jobs that others meet by a dedupe key they hold, by id or by number, locked in order for what is decided next.
with met as (
    select * from unnest(
        %(met_0)s::text[], %(met_1)s::text[], %(met_2)s::text[], %(met_3)s::text[], %(met_4)s::bigint[]
    ) as m (tenant, dedupe_kind, dedupe_key, id, seq)
)
select * from holdfast.job_row
 where seq = any (array(
    select seq from met
     union all
    select j.seq from met m
     cross join lateral (select seq from holdfast.job where id = m.id limit 1) j
     union all
    select j.seq from met m
     cross join lateral (
        select seq from holdfast.job
         where tenant = m.tenant and dedupe_kind = m.dedupe_kind and dedupe_key = m.dedupe_key
           and dedupe_key is not null and state in ('scheduled', 'ready', 'running')
         limit 1
     ) j
 ))
 order by seq
/* lock: for update */
