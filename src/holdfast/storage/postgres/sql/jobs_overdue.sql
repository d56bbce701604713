-- Read some waiting jobs whose deadline has passed, earliest first; what somebody else has in hand is left to them.
select * from holdfast.job_row
 where deadline_at_ms is not null and state in ('scheduled', 'blocked', 'ready') and deadline_at_ms <= %(now)s
 order by deadline_at_ms
 limit %(limit)s
/* lock: for update skip locked */
