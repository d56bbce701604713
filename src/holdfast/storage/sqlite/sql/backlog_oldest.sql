-- For each route: since when the first ready job of each turn is due, at some priorities from the lowest up.
with recursive
level (route, lane, kind, priority, place) as (
    select r.route, r.lane, r.kind, (select priority from holdfast_job
                                      where state = 'ready' and route = r.route
                                      order by priority limit 1), 1
      from holdfast_route r
    union all
    select l.route, l.lane, l.kind, (select priority from holdfast_job
                                      where state = 'ready' and route = l.route and priority > l.priority
                                      order by priority limit 1), l.place + 1
      from level l where l.priority is not null and l.place < :priorities
),
head (route, lane, kind, priority, turn, place) as (
    select l.route, l.lane, l.kind, l.priority, (select turn from holdfast_job
                                                  where state = 'ready' and route = l.route and priority = l.priority
                                                  order by turn limit 1), 1
      from level l where l.priority is not null
    union all
    select h.route, h.lane, h.kind, h.priority, (select turn from holdfast_job
                                                  where state = 'ready' and route = h.route and priority = h.priority
                                                    and turn > h.turn
                                                  order by turn limit 1), h.place + 1
      from head h where h.turn is not null and h.place < :turns
)
select h.lane, h.kind, (select due_at_ms from holdfast_job
                         where state = 'ready' and route = h.route and priority = h.priority and turn = h.turn
                         order by due_at_ms limit 1)
  from head h where h.turn is not null
