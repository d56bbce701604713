-- The event log.

-- name: event_horizon
-- Read the event up to which the log has been pruned; with a single writer the transaction is always 0.
select 0, cast(value as integer) from holdfast_meta where name = 'event_horizon';

-- name: event_last
-- Read the position of the newest event; no row if there is none.
select 0, event from holdfast_event where event = (select max(event) from holdfast_event);

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
-- Count the events after the horizon and before a time, as pruning deletes them, and whether a newer event follows.
with young as (select event from holdfast_event where at_ms >= :before and event > :event order by event limit 1)
select (select count(*) from holdfast_event
         where event > :event and event < coalesce((select event from young), 9223372036854775807)),
       exists (select 1 from young);

-- name: events_append
-- Append to the event log one event of each job, in order, with values of the job's current row. The cross join keeps
-- the order of the given jobs.
insert into holdfast_event (
    name, at_ms, job_id, number, route, tenant, tags, state, attempt, epoch, worker, due_at_ms, failure_class, failure_reason
)
select t.value, :at_ms, j.id, j.event_count, j.route, j.tenant, j.tags, j.state, j.attempt, j.epoch, j.worker,
       case when j.state in ('scheduled', 'blocked', 'ready') then j.due_at_ms end, j.failure_class, j.failure_reason
  from json_each(:events) t
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
-- Return whether an open transaction keeps later events from being read: never with a single writer.
select 0;
