-- Read some sessions whose lease has lapsed, earliest first; what somebody else has in hand is left to them.
select * from holdfast.session_row
 where lease_until_ms is not null and lease_until_ms <= %(now)s
 order by lease_until_ms
 limit %(limit)s
/* lock: for update skip locked */
