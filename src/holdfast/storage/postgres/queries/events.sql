-- The event log.

-- name: event_horizon
-- Read the position, as transaction and event, up to which the log has been pruned.
select split_part(value, '-', 1)::bigint, split_part(value, '-', 2)::bigint
  from holdfast.meta where name = 'event_horizon';

-- name: event_last
-- Read the position of the newest event that can be read; no row if there is none. Without the alias, the first column
-- of the result would be sorted, of all events.
select e.xid::text::bigint, e.event + cardinality(e.job_ids) - 1 from holdfast.event e
 where e.xid < pg_snapshot_xmin(pg_current_snapshot())
 order by e.xid desc, e.event desc
 limit 1;

-- name: events_after
-- Read the log after one event, in order, up to the point where open transactions may still add events. The row of that
-- event is among a thousand numbers, and may have more events.
select e.transaction, e.event, e.name, e.at_ms, e.job_id, e.number, r.kind, r.lane, e.tenant, e.tags,
       e.state, e.attempt, e.epoch, e.worker, e.due_at_ms, e.failure_class, e.failure_reason
  from (select o.xid::text::bigint as transaction, o.event + u.place - 1 as event, u.job_id, o.name, o.at_ms, o.number,
               o.route, o.tenant, o.tags, o.state, o.attempt, o.epoch, o.worker, o.due_at_ms, o.failure_class,
               o.failure_reason
          from holdfast.event o
         cross join lateral unnest(o.job_ids) with ordinality as u (job_id, place)
         where (o.xid, o.event) > (%(transaction)s::xid8, %(event)s::bigint - 1000)
           and (o.xid, o.event + u.place - 1) > (%(transaction)s::xid8, %(event)s)
           and o.xid < pg_snapshot_xmin(pg_current_snapshot())
         order by o.xid, o.event
         limit %(limit)s) e
  join holdfast.route r on r.route = e.route
 order by e.transaction, e.event;

-- name: events_aged
-- Count the events after the horizon and before a time, as pruning deletes them, and whether a newer event follows.
with young as (
    select xid, event from holdfast.event
     where at_ms >= %(before)s and (xid, event) > (%(transaction)s::xid8, %(event)s::bigint - 1000)
       and (xid, event + cardinality(job_ids) - 1) > (%(transaction)s::xid8, %(event)s)
       and xid < pg_snapshot_xmin(pg_current_snapshot())
     order by xid, event
     limit 1
)
select (select count(*) from holdfast.event e
         cross join lateral generate_series(1, cardinality(e.job_ids)) as u (place)
         where (e.xid, e.event) > (%(transaction)s::xid8, %(event)s::bigint - 1000)
           and (e.xid, e.event + u.place - 1) > (%(transaction)s::xid8, %(event)s)
           and e.xid < pg_snapshot_xmin(pg_current_snapshot())
           and not exists (select 1 from young y where (e.xid, e.event) >= (y.xid, y.event))),
       exists (select 1 from young);

-- name: events_append
-- Append to the event log one event of each job, in order, with values of the job's current row.
insert into holdfast.event (
    name, at_ms, job_ids, number, route, tenant, tags, state, attempt, epoch, worker, due_at_ms, failure_class, failure_reason
)
select t.name, %(at_ms)s::bigint, array[j.id], j.event_count, j.route, j.tenant, j.tags, j.state, j.attempt, j.epoch, j.worker,
       case when j.state in ('scheduled', 'blocked', 'dependent', 'parked', 'ready') then j.due_at_ms end, j.failure_class, j.failure_reason
  from unnest(%(events_0)s::bigint[], %(events_1)s::text[]) with ordinality as t (seq, name, ordinal)
  join holdfast.job j on j.seq = t.seq
 order by t.ordinal;

-- name: events_held_back
-- Return whether the log has later events that an open transaction keeps from being read.
select exists (select 1 from holdfast.event
                where (xid, event) > (%(transaction)s::xid8, %(event)s::bigint - 1000)
                  and (xid, event + cardinality(job_ids) - 1) > (%(transaction)s::xid8, %(event)s)
                  and xid >= pg_snapshot_xmin(pg_current_snapshot()));
