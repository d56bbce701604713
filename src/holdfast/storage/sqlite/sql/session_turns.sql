-- For each route and class: the next turn with a head on offer after the one served last, and the first of all.
select (select head_turn from holdfast_session
         where head_seq is not null and head_route = json_extract(p.value, '$[0]')
           and head_class = json_extract(p.value, '$[1]') and head_turn > :last_turn
         order by head_turn limit 1),
       (select head_turn from holdfast_session
         where head_seq is not null and head_route = json_extract(p.value, '$[0]')
           and head_class = json_extract(p.value, '$[1]')
         order by head_turn limit 1)
  from json_each(:places) p
