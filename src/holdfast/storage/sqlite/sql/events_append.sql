-- Append to the event log one event of each job, in order, telling of the job as its row stands now. The cross join
-- keeps the order in which the jobs were named.
insert into holdfast_event (
    name, at_ms, job_id, number, route, tenant, tags, state, attempt, epoch, worker, due_at_ms, failure_class, failure_reason
)
select t.value, :at_ms, j.id, j.event_count, j.route, j.tenant, j.tags, j.state, j.attempt, j.epoch, j.worker,
       case when j.state in ('scheduled', 'blocked', 'ready') then j.due_at_ms end, j.failure_class, j.failure_reason
  from json_each(:told) t
 cross join holdfast_job j
 where j.seq = cast(t.key as integer)
