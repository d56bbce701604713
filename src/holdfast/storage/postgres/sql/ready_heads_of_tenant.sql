-- For each strict route: the first ready jobs of one tenant at one priority.
select h.seq, h.route, h.affinity, h.turn, h.due_at_ms
  from unnest(%(places_0)s::integer[], %(places_1)s::text[]) as p (route, turn)
 cross join lateral (
    select j.seq, j.route, j.affinity, j.turn, j.due_at_ms from holdfast.job j
     where j.state = 'ready' and j.turn = '' and j.tenant = %(tenant)s
       and j.route = p.route and j.priority = %(priority)s
       and j.seq <> all (%(taken)s::bigint[])
     order by j.due_at_ms, j.seq limit %(limit)s
 ) h
