-- Read the batches of a session that run.
select * from holdfast_job_row where session_number = :session and state = 'running'
