-- Read some scheduled jobs whose moment has come, earliest first; what somebody else has in hand is left to them.
select * from holdfast.job_row
 where state = 'scheduled' and due_at_ms <= %(now)s
 order by due_at_ms, seq
 limit %(limit)s
/* lock: for update skip locked */
