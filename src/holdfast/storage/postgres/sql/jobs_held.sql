-- Read the running jobs that a worker holds under one token, for a claim that is sent again.
select * from holdfast.job_row
 where state = 'running' and worker = %(worker)s and lease_token = %(lease_token)s
