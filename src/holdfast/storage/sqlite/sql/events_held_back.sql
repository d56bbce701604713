-- Tell whether the log has more which an open transaction keeps from being read: never, where one writes at a time.
select 0
