-- For each route, class and turn: the sessions with the oldest heads on offer.
select h.head_seq, h.number
  from unnest(%(places_0)s::integer[], %(places_1)s::text[], %(places_2)s::text[]) as p (route, class, turn)
 cross join lateral (
    select s.head_seq, s.number from holdfast.session s
     where s.head_seq is not null and s.head_route = p.route and s.head_class = p.class and s.head_turn = p.turn
     order by s.head_seq limit %(limit)s
 ) h
