-- Delete the log up to one event.
delete from holdfast_event where event <= :event
