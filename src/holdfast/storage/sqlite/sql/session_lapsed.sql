-- Read some running batches of a session whose lease has lapsed.
select * from holdfast_job_row
 where session_number = :session and state = 'running' and lease_until_ms <= :now
 order by lease_until_ms
 limit :limit
