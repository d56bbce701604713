-- For each strict route: the highest priority at which one tenant has ready jobs.
with top (route, priority) as materialized (
    select r.route, (select j.priority from holdfast.job j
                      where j.state = 'ready' and j.turn = '' and j.tenant = %(tenant)s::text
                        and j.route = r.route and j.seq <> all (%(taken)s::bigint[])
                      order by j.priority desc limit 1)
      from unnest(%(routes)s::integer[]) as r (route)
)
select route, priority, '', '' from top where priority is not null
