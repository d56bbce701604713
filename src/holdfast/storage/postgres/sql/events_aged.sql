-- Count the events before a moment.
select count(*) from holdfast.event where at_ms < %(before)s
