-- The event log.

-- name: event_horizon
-- Read up to which event the log has been pruned; transactions need no number where one writes at a time.
select 0, cast(value as integer) from holdfast_meta where name = 'event_horizon';

-- name: events_after
-- Read the log after one event, in order.
select 0, e.event, e.name, e.at_ms, e.job_id, e.number, r.kind, r.lane, e.tenant, e.tags,
       e.state, e.attempt, e.epoch, e.worker, e.due_at_ms, e.failure_class, e.failure_reason
  from holdfast_event e
  join holdfast_route r on r.route = e.route
 where e.event > :event
 order by e.event
 limit :limit;

-- name: events_aged
-- Count the events before a moment, up to the first that is not, as pruning deletes them; tell whether there is one.
with young as (select event from holdfast_event where at_ms >= :before order by event limit 1)
select (select count(*) from holdfast_event
         where event < coalesce((select event from young), 9223372036854775807)),
       exists (select 1 from young);

-- name: events_append
-- Append to the event log one event of each job, in order, telling of the job as its row stands now. The cross join
-- keeps the order in which the jobs were named.
insert into holdfast_event (
    name, at_ms, job_id, number, route, tenant, tags, state, attempt, epoch, worker, due_at_ms, failure_class, failure_reason
)
select t.value, :at_ms, j.id, j.event_count, j.route, j.tenant, j.tags, j.state, j.attempt, j.epoch, j.worker,
       case when j.state in ('scheduled', 'blocked', 'ready') then j.due_at_ms end, j.failure_class, j.failure_reason
  from json_each(:told) t
 cross join holdfast_job j
 where j.seq = cast(t.key as integer);

-- name: events_append_one
-- As events_append, for one job.
insert into holdfast_event (
    name, at_ms, job_id, number, route, tenant, tags, state, attempt, epoch, worker, due_at_ms, failure_class, failure_reason
)
select :value, :at_ms, id, event_count, route, tenant, tags, state, attempt, epoch, worker,
       case when state in ('scheduled', 'blocked', 'ready') then due_at_ms end, failure_class, failure_reason
  from holdfast_job
 where seq = :key;

-- name: events_held_back
-- Tell whether the log has more which an open transaction keeps from being read: never, where one writes at a time.
select 0;
