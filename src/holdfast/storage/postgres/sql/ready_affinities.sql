-- For each route: the affinities that ready jobs at one priority name, in order, round after one of them.
with recursive
later (route, affinity, place) as (
    select r.route, (select j.affinity from holdfast.job j
                      where j.state = 'ready' and j.affinity is not null and j.route = r.route
                        and j.priority = %(priority)s::integer and j.affinity > %(after)s::text
                        and j.seq <> all (%(taken)s::bigint[])
                      order by j.affinity limit 1), 1
      from unnest(%(routes)s::integer[]) as r (route)
    union all
    select l.route, (select j.affinity from holdfast.job j
                      where j.state = 'ready' and j.affinity is not null and j.route = l.route
                        and j.priority = %(priority)s::integer and j.affinity > l.affinity
                        and j.seq <> all (%(taken)s::bigint[])
                      order by j.affinity limit 1), l.place + 1
      from later l where l.affinity is not null and l.place < %(limit)s::integer
),
earlier (route, affinity, place) as (
    select r.route, (select j.affinity from holdfast.job j
                      where j.state = 'ready' and j.affinity is not null and j.route = r.route
                        and j.priority = %(priority)s::integer
                        and j.seq <> all (%(taken)s::bigint[])
                      order by j.affinity limit 1), 1
      from unnest(%(routes)s::integer[]) as r (route)
    union all
    select e.route, (select j.affinity from holdfast.job j
                      where j.state = 'ready' and j.affinity is not null and j.route = e.route
                        and j.priority = %(priority)s::integer and j.affinity > e.affinity
                        and j.seq <> all (%(taken)s::bigint[])
                      order by j.affinity limit 1), e.place + 1
      from earlier e where e.affinity < %(after)s::text and e.place < %(limit)s::integer
)
select affinity from later where affinity is not null
union all
select affinity from earlier where affinity < %(after)s::text
