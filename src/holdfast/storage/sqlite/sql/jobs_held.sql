-- Read the running jobs that a worker holds under one token, for a claim that is sent again.
select * from holdfast_job_row
 where state = 'running' and worker = :worker and lease_token = :lease_token
