-- Tell which batches of a session run, and under which lease.
select seq, lease_token from holdfast.job
 where session = %(session)s and session is not null and state = 'running'
