-- Deleting old finished jobs and events.

-- name: artifacts_delete
-- Delete the artifacts of jobs.
delete from holdfast.artifact where seq = any (%(seqs)s::bigint[]);

-- name: attempts_delete
-- Delete the attempts of jobs.
delete from holdfast.attempt where seq = any (%(seqs)s::bigint[]);

-- name: event_horizon_write
-- Store the position, as transaction and event, up to which the log has been pruned; it never moves back.
update holdfast.meta set value = %(transaction)s::bigint || '-' || %(event)s::bigint
 where name = 'event_horizon'
   and (split_part(value, '-', 1)::bigint, split_part(value, '-', 2)::bigint) < (%(transaction)s, %(event)s);

-- name: events_delete
-- Delete the log after the horizon up to one event of one transaction; a row is deleted with its last event. Without the
-- limit a scan would not stop at that event but at the last one of its transaction.
delete from holdfast.event
 where ctid = any (array(select ctid from holdfast.event
                          where (xid, event) > (%(after_transaction)s::xid8, %(after_event)s::bigint - 1000)
                            and (xid, event) <= (%(transaction)s::xid8, %(event)s)
                            and (xid, event + cardinality(job_ids) - 1) <= (%(transaction)s::xid8, %(event)s)
                          order by xid, event
                          limit %(limit)s));

-- name: events_head
-- Read the first events after the horizon with their timestamps, to prune a prefix to which no transaction can add
-- events.
select h.transaction, h.event, h.at_ms
  from (select e.xid::text::bigint as transaction, e.event + u.place - 1 as event, e.at_ms from holdfast.event e
         cross join lateral generate_series(1, cardinality(e.job_ids)) as u (place)
         where (e.xid, e.event) > (%(transaction)s::xid8, %(event)s::bigint - 1000)
           and (e.xid, e.event + u.place - 1) > (%(transaction)s::xid8, %(event)s)
           and e.xid < pg_snapshot_xmin(pg_current_snapshot())
         order by e.xid, e.event
         limit %(limit)s) h
 order by h.transaction, h.event;

-- name: jobs_delete
-- Delete finished jobs, and the rows of lists that list no job any more.
select holdfast.delete_jobs_1(%(seqs)s::bigint[], %(finished_after)s);

-- name: jobs_to_prune
-- Find and lock some jobs of one finished state that finished before a time, earliest first, after one of them.
select finished_at_ms, seq
  from holdfast.jobs_to_delete_1(%(state)s, %(finished_after)s, %(after)s, %(before)s, %(limit)s::integer);
