-- Read the first events of the log with their moments, for pruning a prefix.
select 0, event, at_ms from holdfast_event order by event limit :limit
