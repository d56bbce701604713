-- For each fair route: the highest priority at which one tenant has ready jobs, stepping down from the top.
with recursive step (route, priority, found) as (
    select r.route, t.priority, exists (select 1 from holdfast.job j
                                         where j.state = 'ready' and j.route = r.route
                                           and j.priority = t.priority and j.turn = %(tenant)s::text
                                           and j.seq <> all (%(taken)s::bigint[]))
      from unnest(%(routes)s::integer[]) as r (route)
     cross join lateral (select j.priority from holdfast.job j
                          where j.state = 'ready' and j.route = r.route
                          order by j.priority desc limit 1) t
    union all
    select s.route, t.priority, exists (select 1 from holdfast.job j
                                         where j.state = 'ready' and j.route = s.route
                                           and j.priority = t.priority and j.turn = %(tenant)s::text
                                           and j.seq <> all (%(taken)s::bigint[]))
      from step s
     cross join lateral (select j.priority from holdfast.job j
                          where j.state = 'ready' and j.route = s.route and j.priority < s.priority
                          order by j.priority desc limit 1) t
     where not s.found
)
select route, priority, %(tenant)s::text, %(tenant)s::text from step where found
