-- Read when the next session lease lapses.
select (select lease_until_ms from holdfast.session where lease_until_ms is not null order by lease_until_ms limit 1)
