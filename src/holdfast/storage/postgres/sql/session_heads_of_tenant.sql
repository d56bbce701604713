-- For each route and class: one tenant's sessions with the oldest heads on offer in strict lanes, which have no turns.
select h.head_seq, h.number
  from unnest(%(places_0)s::integer[], %(places_1)s::text[]) as p (route, class)
 cross join lateral (
    select s.head_seq, s.number from holdfast.session s
     where s.head_seq is not null and s.head_turn = '' and s.tenant = %(tenant)s
       and s.head_route = p.route and s.head_class = p.class
     order by s.head_seq limit %(limit)s
 ) h
