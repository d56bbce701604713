-- Remember up to which event, of which transaction, the log has been pruned; it never goes back.
update holdfast.meta set value = %(transaction)s::bigint || '-' || %(event)s::bigint
 where name = 'event_horizon'
   and (split_part(value, '-', 1)::bigint, split_part(value, '-', 2)::bigint) < (%(transaction)s, %(event)s)
