-- For each pair of route and turn: its first ready jobs at one priority, from a mark on.
select h.seq, h.route, h.affinity, h.turn, h.due_at_ms
  from unnest(
    %(places_0)s::integer[], %(places_1)s::text[], %(lows_0)s::bigint[], %(lows_1)s::bigint[]
  ) as p (route, turn, due_low, seq_low)
 cross join lateral (
    select j.seq, j.route, j.affinity, j.turn, j.due_at_ms from holdfast.job j
     where j.state = 'ready' and j.route = p.route and j.priority = %(priority)s and j.turn = p.turn
       and (j.due_at_ms, j.seq) >= (p.due_low, p.seq_low)
       and j.seq <> all (%(taken)s::bigint[])
     order by j.due_at_ms, j.seq limit %(limit)s
 ) h
