-- Read the log after one event, in order.
select 0, event, name, at_ms, job_id, number, kind, lane, tenant, tags, details
  from holdfast_event where event > :event order by event limit :limit
