-- Read the log after one event, in order.
select 0, e.event, e.name, e.at_ms, e.job_id, e.number, r.kind, r.lane, e.tenant, e.tags,
       e.state, e.attempt, e.epoch, e.worker, e.due_at_ms, e.failure_class, e.failure_reason
  from holdfast_event e
  join holdfast_route r on r.route = e.route
 where e.event > :event
 order by e.event
 limit :limit
