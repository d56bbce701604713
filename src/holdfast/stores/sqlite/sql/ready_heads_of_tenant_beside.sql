-- For each strict route and each affinity: the first ready jobs of one tenant at one priority.
select j.seq, j.route, j.affinity, j.turn, j.due_at_ms
  from json_each(:routes) r
 cross join json_each(:affinities) a
 cross join holdfast_job j
 where j.seq in (select seq from holdfast_job
                  where state = 'ready' and turn = '' and affinity is not null and affinity = a.value
                    and tenant = :tenant and route = r.value and priority = :priority
                  order by due_at_ms, seq limit :limit)
