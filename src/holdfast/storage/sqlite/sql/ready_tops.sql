-- For each route: its highest priority with ready jobs, and the first and last turn there.
with top (route, priority) as materialized (
    select r.value, (select priority from holdfast_job
                      where state = 'ready' and route = r.value
                      order by priority desc limit 1)
      from json_each(:routes) r
)
select route, priority,
       (select turn from holdfast_job
         where state = 'ready' and route = top.route and priority = top.priority
         order by turn limit 1),
       (select turn from holdfast_job
         where state = 'ready' and route = top.route and priority = top.priority
         order by turn desc limit 1)
  from top
 where priority is not null
