-- Read some running batches of a session whose lease has lapsed; what somebody else has in hand is left to them.
select * from holdfast.job_row
 where session_number = %(session)s and session_number is not null and state = 'running' and lease_until_ms <= %(now)s
 order by lease_until_ms
 limit %(limit)s
/* lock: for update skip locked */
