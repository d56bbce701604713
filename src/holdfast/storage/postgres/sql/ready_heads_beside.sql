-- For each triple of route, turn and affinity: its first ready jobs at one priority.
select h.seq, h.route, h.affinity, h.turn, h.due_at_ms
  from unnest(%(places_0)s::integer[], %(places_1)s::text[], %(places_2)s::text[]) as p (route, turn, affinity)
 cross join lateral (
    select j.seq, j.route, j.affinity, j.turn, j.due_at_ms from holdfast.job j
     where j.state = 'ready' and j.affinity is not null and j.affinity = p.affinity
       and j.route = p.route and j.priority = %(priority)s and j.turn = p.turn
       and j.seq <> all (%(taken)s::bigint[])
     order by j.due_at_ms, j.seq limit %(limit)s
 ) h
