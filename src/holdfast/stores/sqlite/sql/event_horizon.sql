-- Read up to which event the log has been pruned.
select cast(value as integer) from holdfast_meta where name = 'event_horizon'
