-- For each route and class: the next turn with a head on offer after the one served last, and the first of all.
select (select s.head_turn from holdfast.session s
         where s.head_seq is not null and s.head_route = p.route and s.head_class = p.class
           and s.head_turn > %(last_turn)s::text
         order by s.head_turn limit 1),
       (select s.head_turn from holdfast.session s
         where s.head_seq is not null and s.head_route = p.route and s.head_class = p.class
         order by s.head_turn limit 1)
  from unnest(%(places_0)s::integer[], %(places_1)s::text[]) as p (route, class)
