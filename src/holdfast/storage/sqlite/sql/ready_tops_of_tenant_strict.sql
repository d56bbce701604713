-- For each strict route: the highest priority at which one tenant has ready jobs.
with top (route, priority) as materialized (
    select r.value, (select priority from holdfast_job
                      where state = 'ready' and turn = '' and tenant = :tenant and route = r.value
                      order by priority desc limit 1)
      from json_each(:routes) r
)
select route, priority, '', '' from top where priority is not null
