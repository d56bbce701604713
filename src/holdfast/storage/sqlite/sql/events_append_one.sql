-- As events_append, for one job.
insert into holdfast_event (
    name, at_ms, job_id, number, route, tenant, tags, state, attempt, epoch, worker, due_at_ms, failure_class, failure_reason
)
select :value, :at_ms, id, event_count, route, tenant, tags, state, attempt, epoch, worker,
       case when state in ('scheduled', 'blocked', 'ready') then due_at_ms end, failure_class, failure_reason
  from holdfast_job
 where seq = :key
