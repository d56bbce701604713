-- Read some scheduled batches of a session whose moment has come.
select * from holdfast_job_row
 where session_number = :session and state = 'scheduled' and due_at_ms <= :now
 order by due_at_ms
 limit :limit
