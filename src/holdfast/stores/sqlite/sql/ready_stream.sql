-- Read the first ready jobs of one route, priority and turn.
select * from holdfast_job_row
 where seq in (select seq from holdfast_job
                where state = 'ready' and route = :route and priority = :priority and turn = :turn
                order by due_at_ms, seq limit :limit)
