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
-- Delete the log up to one event of one transaction.
delete from holdfast.event where (xid, event) <= (%(transaction)s::xid8, %(event)s);

-- name: events_head
-- Read the first events of the log with their timestamps, to prune a prefix to which no transaction can add events.
select xid::text::bigint, event, at_ms from holdfast.event
 where xid < pg_snapshot_xmin(pg_current_snapshot())
 order by xid, event
 limit %(limit)s;

-- name: jobs_delete
-- Delete jobs.
delete from holdfast.job where seq = any (%(seqs)s::bigint[]);

-- name: jobs_to_prune
-- Find and lock some jobs of one finished state that finished before a time, earliest first.
select seq from holdfast.job
 where finished_at_ms is not null and state = %(state)s and finished_at_ms < %(before)s
 order by finished_at_ms, seq
 limit %(limit)s
/* lock: for update skip locked */;
