-- As ready_turns, but only among jobs with one of these affinities.
with recursive
place (route, affinity) as materialized (
    select r.value, a.value from json_each(:routes) r join json_each(:affinities) a
),
later (route, affinity, turn, place) as (
    select p.route, p.affinity, (select turn from holdfast_job
                                  where state = 'ready' and affinity is not null and affinity = p.affinity
                                    and route = p.route and priority = :priority and turn > :last_turn
                                  order by turn limit 1), 1
      from place p
    union all
    select l.route, l.affinity, (select turn from holdfast_job
                                  where state = 'ready' and affinity is not null and affinity = l.affinity
                                    and route = l.route and priority = :priority and turn > l.turn
                                  order by turn limit 1), l.place + 1
      from later l where l.turn is not null and l.place < :limit
),
earlier (route, affinity, turn, place) as (
    select p.route, p.affinity, (select turn from holdfast_job
                                  where state = 'ready' and affinity is not null and affinity = p.affinity
                                    and route = p.route and priority = :priority
                                  order by turn limit 1), 1
      from place p
    union all
    select e.route, e.affinity, (select turn from holdfast_job
                                  where state = 'ready' and affinity is not null and affinity = e.affinity
                                    and route = e.route and priority = :priority and turn > e.turn
                                  order by turn limit 1), e.place + 1
      from earlier e where e.turn <= :last_turn and e.place < :limit
)
select route, turn, affinity from later where turn is not null
union all
select route, turn, affinity from earlier where turn <= :last_turn
