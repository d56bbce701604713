-- For each route: the affinities that ready jobs at one priority name, in order, round after one of them.
with recursive
later (route, affinity, place) as (
    select r.value, (select affinity from holdfast_job
                      where state = 'ready' and affinity is not null and route = r.value
                        and priority = :priority and affinity > :after
                      order by affinity limit 1), 1
      from json_each(:routes) r
    union all
    select l.route, (select affinity from holdfast_job
                      where state = 'ready' and affinity is not null and route = l.route
                        and priority = :priority and affinity > l.affinity
                      order by affinity limit 1), l.place + 1
      from later l where l.affinity is not null and l.place < :limit
),
earlier (route, affinity, place) as (
    select r.value, (select affinity from holdfast_job
                      where state = 'ready' and affinity is not null and route = r.value
                        and priority = :priority
                      order by affinity limit 1), 1
      from json_each(:routes) r
    union all
    select e.route, (select affinity from holdfast_job
                      where state = 'ready' and affinity is not null and route = e.route
                        and priority = :priority and affinity > e.affinity
                      order by affinity limit 1), e.place + 1
      from earlier e where e.affinity < :after and e.place < :limit
)
select affinity from later where affinity is not null
union all
select affinity from earlier where affinity < :after
