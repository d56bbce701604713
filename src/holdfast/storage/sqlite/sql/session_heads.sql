-- For each route, class and turn: the sessions with the oldest heads on offer.
select s.head_seq, s.number
  from json_each(:places) p
 cross join holdfast_session s
 where s.number in (select h.number from holdfast_session h
                     where h.head_seq is not null and h.head_route = json_extract(p.value, '$[0]')
                       and h.head_class = json_extract(p.value, '$[1]') and h.head_turn = json_extract(p.value, '$[2]')
                     order by h.head_seq limit :limit)
