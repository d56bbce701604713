-- Find the next batches of a session that wait, by their numbers, for a pass over all of them.
select seq from holdfast_job
 where session = :session and session is not null and seq > :after and state in ('scheduled', 'ready')
 order by seq
 limit :limit
