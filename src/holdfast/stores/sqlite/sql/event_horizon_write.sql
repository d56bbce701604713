-- Remember up to which event the log has been pruned.
update holdfast_meta set value = :event where name = 'event_horizon'
