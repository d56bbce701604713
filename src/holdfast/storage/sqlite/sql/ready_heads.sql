-- For each pair of route and turn: its first ready jobs at one priority.
select j.seq, j.route, j.affinity, j.turn, j.due_at_ms
  from json_each(:places) p
 cross join holdfast_job j
 where j.seq in (select seq from holdfast_job
                  where state = 'ready' and route = json_extract(p.value, '$[0]') and priority = :priority
                    and turn = json_extract(p.value, '$[1]')
                  order by due_at_ms, seq limit :limit)
