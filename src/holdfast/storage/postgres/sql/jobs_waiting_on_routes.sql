-- Find the next waiting jobs of some routes in enqueue order, for a pass over all of them outside any write.
select seq from holdfast.job
 where seq > %(after)s and state in ('scheduled', 'blocked', 'ready')
   and route = any (%(routes)s::integer[])
 order by seq
 limit %(limit)s
