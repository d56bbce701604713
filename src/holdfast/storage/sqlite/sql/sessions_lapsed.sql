-- Read some sessions whose lease has lapsed, earliest first.
select * from holdfast_session_row
 where lease_until_ms is not null and lease_until_ms <= :now
 order by lease_until_ms
 limit :limit
