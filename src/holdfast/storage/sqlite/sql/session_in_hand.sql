-- Tell which batches of a session run, and under which lease.
select seq, lease_token from holdfast_job where session = :session and session is not null and state = 'running'
