-- Remember up to which event the log has been pruned.
update holdfast_meta set value = cast(:event as text) where name = 'event_horizon'
