-- For each fair route: the highest priority at which one tenant has ready jobs, stepping down from the top. The plus
-- before the value matters: see ready_stream.
with recursive step (route, priority, found) as (
    select r.value, t.priority, exists (select 1 from holdfast_job
                                         where state = 'ready' and route = r.value
                                           and priority = t.priority and turn = +:tenant)
      from json_each(:routes) r
      join holdfast_job t on t.seq = (select seq from holdfast_job
                                       where state = 'ready' and route = r.value
                                       order by priority desc limit 1)
    union all
    select s.route, t.priority, exists (select 1 from holdfast_job
                                         where state = 'ready' and route = s.route
                                           and priority = t.priority and turn = +:tenant)
      from step s
      join holdfast_job t on t.seq = (select seq from holdfast_job
                                       where state = 'ready' and route = s.route and priority < s.priority
                                       order by priority desc limit 1)
     where not s.found
)
select route, priority, :tenant, :tenant from step where found
