-- Find the next waiting jobs of some routes in enqueue order, for a pass over all of them outside any write.
select seq from holdfast_job
 where seq > :after and state in ('scheduled', 'blocked', 'ready')
   and route in (select value from json_each(:routes))
 order by seq
 limit :limit
