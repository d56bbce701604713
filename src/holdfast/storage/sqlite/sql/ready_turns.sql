-- For each route: the turns with ready jobs at one priority that come next, round after the one served last.
with recursive
later (route, turn, place) as (
    select r.value, (select turn from holdfast_job
                      where state = 'ready' and route = r.value and priority = :priority and turn > :last_turn
                      order by turn limit 1), 1
      from json_each(:routes) r
    union all
    select l.route, (select turn from holdfast_job
                      where state = 'ready' and route = l.route and priority = :priority and turn > l.turn
                      order by turn limit 1), l.place + 1
      from later l where l.turn is not null and l.place < :limit
),
earlier (route, turn, place) as (
    select r.value, (select turn from holdfast_job
                      where state = 'ready' and route = r.value and priority = :priority
                      order by turn limit 1), 1
      from json_each(:routes) r
    union all
    select e.route, (select turn from holdfast_job
                      where state = 'ready' and route = e.route and priority = :priority and turn > e.turn
                      order by turn limit 1), e.place + 1
      from earlier e where e.turn <= :last_turn and e.place < :limit
)
select route, turn from later where turn is not null
union all
select route, turn from earlier where turn <= :last_turn
