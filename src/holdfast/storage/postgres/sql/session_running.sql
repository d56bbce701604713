-- Read the batches of a session that run, locked in order for what is decided next.
select * from holdfast.job_row
 where session_number = %(session)s and session_number is not null and state = 'running'
 order by seq
/* lock: for update */
