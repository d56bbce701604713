-- For each route: its highest priority with ready jobs, and the first and last turn there.
with top (route, priority) as materialized (
    select r.route, (select j.priority from holdfast.job j
                      where j.state = 'ready' and j.route = r.route and j.seq <> all (%(taken)s::bigint[])
                      order by j.priority desc limit 1)
      from unnest(%(routes)s::integer[]) as r (route)
)
select top.route, top.priority,
       (select j.turn from holdfast.job j
         where j.state = 'ready' and j.route = top.route and j.priority = top.priority
           and j.seq <> all (%(taken)s::bigint[])
         order by j.turn limit 1),
       (select j.turn from holdfast.job j
         where j.state = 'ready' and j.route = top.route and j.priority = top.priority
           and j.seq <> all (%(taken)s::bigint[])
         order by j.turn desc limit 1)
  from top
 where top.priority is not null
