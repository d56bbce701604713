-- Step through the affinities that ready jobs name, in order, round after one of them.
with recursive
later (affinity, place) as (
    select (select affinity from holdfast_job
             where state = 'ready' and affinity is not null and affinity > :after
             order by affinity limit 1), 1
    union all
    select (select affinity from holdfast_job
             where state = 'ready' and affinity is not null and affinity > l.affinity
             order by affinity limit 1), l.place + 1
      from later l where l.affinity is not null and l.place < :limit
),
earlier (affinity, place) as (
    select (select affinity from holdfast_job
             where state = 'ready' and affinity is not null
             order by affinity limit 1), 1
    union all
    select (select affinity from holdfast_job
             where state = 'ready' and affinity is not null and affinity > e.affinity
             order by affinity limit 1), e.place + 1
      from earlier e where e.affinity < :after and e.place < :limit
)
select affinity from later where affinity is not null
union all
select affinity from earlier where affinity < :after
