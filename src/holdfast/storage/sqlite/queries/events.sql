-- The event log.

-- name: event_horizon
-- Read the event up to which the log has been pruned; with a single writer the transaction is always 0.
select 0, cast(value as integer) from holdfast_meta where name = 'event_horizon';

-- name: event_last
-- Read the position of the newest event; no row if there is none.
select 0, event from holdfast_event where event = (select max(event) from holdfast_event);

-- name: events_after
-- Read the log after one event, in order.
select 0, e.event, e.name, e.at_ms, e.job_id, e.number, r.kind, r.lane, e.tenant, coalesce(e.more ->> '$.tags', '{}'),
       coalesce(e.more ->> '$.state', e.name), e.attempt, e.epoch, h.worker, e.more ->> '$.due_at_ms',
       e.more ->> '$.failure_class', e.more ->> '$.failure_reason'
  from holdfast_event e
  join holdfast_route r on r.route = e.route
  left join holdfast_holder h on h.holder = e.holder
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
insert into holdfast_event (name, at_ms, seq, number, route, tenant, job_id, attempt, epoch, holder, more)
select t.value, :at_ms, j.seq, j.event_count, j.route, j.tenant, j.id, j.attempt, j.epoch, j.holder,
       case when j.extra is not null or j.state < 20 then json_patch('{}', json_object(
           'state', case when j.state < 20 then (select s.name from holdfast_state s where s.number = j.state) end,
           'tags', j.extra ->> '$.tags_json', 'due_at_ms', case when j.state < {running} then j.due_at_ms end,
           'failure_class', j.extra ->> '$.failure_class', 'failure_reason', j.extra ->> '$.failure_reason')) end
  from json_each(:events) t
 cross join holdfast_job j
 where j.seq = cast(t.key as integer);

-- name: events_append_done
-- As events_append, for jobs that are done.
insert into holdfast_event (name, at_ms, seq, number, route, tenant, job_id, attempt, epoch, holder, more)
select 'done', :at_ms, j.seq, j.event_count, j.route, j.tenant, j.id, j.attempt, j.epoch, j.holder,
       case when j.extra is not null then json_patch('{}', json_object('tags', j.extra ->> '$.tags_json')) end
  from json_each(:seqs) t
 cross join holdfast_job j
 where j.seq = t.value;

-- name: events_append_done_one
-- As events_append_done, for one job.
insert into holdfast_event (name, at_ms, seq, number, route, tenant, job_id, attempt, epoch, holder, more)
select 'done', :at_ms, j.seq, j.event_count, j.route, j.tenant, j.id, j.attempt, j.epoch, j.holder,
       case when j.extra is not null then json_patch('{}', json_object('tags', j.extra ->> '$.tags_json')) end
  from holdfast_job j
 where j.seq = :seq;

-- name: events_append_done_range
-- As events_append_done, for jobs with consecutive numbers in their order.
insert into holdfast_event (name, at_ms, seq, number, route, tenant, job_id, attempt, epoch, holder, more)
select 'done', :at_ms, j.seq, j.event_count, j.route, j.tenant, j.id, j.attempt, j.epoch, j.holder,
       case when j.extra is not null then json_patch('{}', json_object('tags', j.extra ->> '$.tags_json')) end
  from holdfast_job j
 where j.seq between :first and :last
 order by j.seq;

-- name: events_append_one
-- As events_append, for one job.
insert into holdfast_event (name, at_ms, seq, number, route, tenant, job_id, attempt, epoch, holder, more)
select :value, :at_ms, j.seq, j.event_count, j.route, j.tenant, j.id, j.attempt, j.epoch, j.holder,
       case when j.extra is not null or j.state < 20 then json_patch('{}', json_object(
           'state', case when j.state < 20 then (select s.name from holdfast_state s where s.number = j.state) end,
           'tags', j.extra ->> '$.tags_json', 'due_at_ms', case when j.state < {running} then j.due_at_ms end,
           'failure_class', j.extra ->> '$.failure_class', 'failure_reason', j.extra ->> '$.failure_reason')) end
  from holdfast_job j
 where j.seq = :key;

-- name: events_held_back
-- Return whether an open transaction keeps later events from being read: never with a single writer.
select 0;
