-- Read some scheduled jobs whose moment has come, earliest first.
select * from holdfast_job_row
 where state = 'scheduled' and due_at_ms <= :now
 order by due_at_ms, seq
 limit :limit
