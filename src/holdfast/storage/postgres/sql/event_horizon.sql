-- Read up to which event, of which transaction, the log has been pruned.
select split_part(value, '-', 1)::bigint, split_part(value, '-', 2)::bigint
  from holdfast.meta where name = 'event_horizon'
