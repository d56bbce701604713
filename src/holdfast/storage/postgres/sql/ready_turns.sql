-- For each route: the turns with ready jobs at one priority that come next, round after the one served last.
with recursive
later (route, turn, place) as (
    select r.route, (select j.turn from holdfast.job j
                      where j.state = 'ready' and j.route = r.route and j.priority = %(priority)s::integer
                        and j.turn > %(last_turn)s::text and j.seq <> all (%(taken)s::bigint[])
                      order by j.turn limit 1), 1
      from unnest(%(routes)s::integer[]) as r (route)
    union all
    select l.route, (select j.turn from holdfast.job j
                      where j.state = 'ready' and j.route = l.route and j.priority = %(priority)s::integer
                        and j.turn > l.turn and j.seq <> all (%(taken)s::bigint[])
                      order by j.turn limit 1), l.place + 1
      from later l where l.turn is not null and l.place < %(limit)s::integer
),
earlier (route, turn, place) as (
    select r.route, (select j.turn from holdfast.job j
                      where j.state = 'ready' and j.route = r.route and j.priority = %(priority)s::integer
                        and j.seq <> all (%(taken)s::bigint[])
                      order by j.turn limit 1), 1
      from unnest(%(routes)s::integer[]) as r (route)
    union all
    select e.route, (select j.turn from holdfast.job j
                      where j.state = 'ready' and j.route = e.route and j.priority = %(priority)s::integer
                        and j.turn > e.turn and j.seq <> all (%(taken)s::bigint[])
                      order by j.turn limit 1), e.place + 1
      from earlier e where e.turn <= %(last_turn)s::text and e.place < %(limit)s::integer
)
select route, turn from later where turn is not null
union all
select route, turn from earlier where turn <= %(last_turn)s::text
