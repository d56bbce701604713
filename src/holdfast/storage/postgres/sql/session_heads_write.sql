-- Write which head each session offers.
update holdfast.session s
   set head_route = v.head_route, head_class = v.head_class, head_turn = v.head_turn, head_seq = v.head_seq
  from unnest(%(c0)s::integer[], %(c1)s::text[], %(c2)s::text[], %(c3)s::bigint[], %(c4)s::bigint[])
       as v (head_route, head_class, head_turn, head_seq, number)
 where s.number = v.number
