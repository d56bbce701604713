-- Find the next batches of a session that wait, by their numbers, for a pass over all of them.
select seq from holdfast.job
 where session = %(session)s and session is not null and seq > %(after)s and state in ('scheduled', 'ready')
 order by seq
 limit %(limit)s
