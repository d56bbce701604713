-- Count the events before a moment.
select count(*) from holdfast_event where at_ms < :before
