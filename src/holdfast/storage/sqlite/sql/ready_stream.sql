-- Read the first ready jobs of one route, priority and turn. The plus before the value hides it from the planner: it
-- would else compare it with the `turn = ''` of another partial index, and plan the statement anew at every call.
select * from holdfast_job_row
 where seq in (select seq from holdfast_job
                where state = 'ready' and route = :route and priority = :priority and turn = +:turn
                order by due_at_ms, seq limit :limit)
