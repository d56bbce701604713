-- For each route: since when the first ready job of each turn is due, at some priorities from the lowest up.
with recursive
level (route, lane, kind, priority, place) as (
    select r.route, r.lane, r.kind, (select j.priority from holdfast.job j
                                      where j.state = 'ready' and j.route = r.route
                                      order by j.priority limit 1), 1
      from holdfast.route r
    union all
    select l.route, l.lane, l.kind, (select j.priority from holdfast.job j
                                      where j.state = 'ready' and j.route = l.route and j.priority > l.priority
                                      order by j.priority limit 1), l.place + 1
      from level l where l.priority is not null and l.place < %(priorities)s
),
head (route, lane, kind, priority, turn, place) as (
    select l.route, l.lane, l.kind, l.priority, (select j.turn from holdfast.job j
                                                  where j.state = 'ready' and j.route = l.route
                                                    and j.priority = l.priority
                                                  order by j.turn limit 1), 1
      from level l where l.priority is not null
    union all
    select h.route, h.lane, h.kind, h.priority, (select j.turn from holdfast.job j
                                                  where j.state = 'ready' and j.route = h.route
                                                    and j.priority = h.priority and j.turn > h.turn
                                                  order by j.turn limit 1), h.place + 1
      from head h where h.turn is not null and h.place < %(turns)s
)
select h.lane, h.kind, (select j.due_at_ms from holdfast.job j
                         where j.state = 'ready' and j.route = h.route and j.priority = h.priority
                           and j.turn = h.turn
                         order by j.due_at_ms limit 1)
  from head h where h.turn is not null
