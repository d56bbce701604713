-- As ready_turns, but only among jobs with one of these affinities.
with recursive
place (route, affinity) as materialized (
    select r.route, a.affinity
      from unnest(%(routes)s::integer[]) as r (route)
     cross join unnest(%(affinities)s::text[]) as a (affinity)
),
later (route, affinity, turn, place) as (
    select p.route, p.affinity, (select j.turn from holdfast.job j
                                  where j.state = 'ready' and j.affinity is not null and j.affinity = p.affinity
                                    and j.route = p.route and j.priority = %(priority)s::integer
                                    and j.turn > %(last_turn)s::text and j.seq <> all (%(taken)s::bigint[])
                                  order by j.turn limit 1), 1
      from place p
    union all
    select l.route, l.affinity, (select j.turn from holdfast.job j
                                  where j.state = 'ready' and j.affinity is not null and j.affinity = l.affinity
                                    and j.route = l.route and j.priority = %(priority)s::integer
                                    and j.turn > l.turn and j.seq <> all (%(taken)s::bigint[])
                                  order by j.turn limit 1), l.place + 1
      from later l where l.turn is not null and l.place < %(limit)s::integer
),
earlier (route, affinity, turn, place) as (
    select p.route, p.affinity, (select j.turn from holdfast.job j
                                  where j.state = 'ready' and j.affinity is not null and j.affinity = p.affinity
                                    and j.route = p.route and j.priority = %(priority)s::integer
                                    and j.seq <> all (%(taken)s::bigint[])
                                  order by j.turn limit 1), 1
      from place p
    union all
    select e.route, e.affinity, (select j.turn from holdfast.job j
                                  where j.state = 'ready' and j.affinity is not null and j.affinity = e.affinity
                                    and j.route = e.route and j.priority = %(priority)s::integer
                                    and j.turn > e.turn and j.seq <> all (%(taken)s::bigint[])
                                  order by j.turn limit 1), e.place + 1
      from earlier e where e.turn <= %(last_turn)s::text and e.place < %(limit)s::integer
)
select route, turn, affinity from later where turn is not null
union all
select route, turn, affinity from earlier where turn <= %(last_turn)s::text
