-- Read some scheduled batches of a session whose moment has come; what somebody else has in hand is left to them.
select * from holdfast.job_row
 where session_number = %(session)s and session_number is not null and state = 'scheduled' and due_at_ms <= %(now)s
 order by due_at_ms
 limit %(limit)s
/* lock: for update skip locked */
