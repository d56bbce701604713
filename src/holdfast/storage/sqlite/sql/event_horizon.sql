-- Read up to which event the log has been pruned; transactions need no number where one writes at a time.
select 0, cast(value as integer) from holdfast_meta where name = 'event_horizon'
