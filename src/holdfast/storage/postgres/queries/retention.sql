-- Deleting what is finished and old.

-- name: artifacts_delete
-- Delete the artifacts of jobs.
delete from holdfast.artifact where seq = any (%(seqs)s::bigint[]);

-- name: attempts_delete
-- Delete the attempts of jobs.
delete from holdfast.attempt where seq = any (%(seqs)s::bigint[]);

-- name: event_horizon_write
-- Remember up to which event, of which transaction, the log has been pruned; it never goes back.
update holdfast.meta set value = %(transaction)s::bigint || '-' || %(event)s::bigint
 where name = 'event_horizon'
   and (split_part(value, '-', 1)::bigint, split_part(value, '-', 2)::bigint) < (%(transaction)s, %(event)s);

-- name: events_delete
-- Delete the log up to one event of one transaction.
delete from holdfast.event where (xid, event) <= (%(transaction)s::xid8, %(event)s);

-- name: events_head
-- Read the first events of the log with their moments, for pruning a prefix that nobody can add to any more.
select xid::text::bigint, event, at_ms from holdfast.event
 where xid < pg_snapshot_xmin(pg_current_snapshot())
 order by xid, event
 limit %(limit)s;

-- name: jobs_delete
-- Delete jobs.
delete from holdfast.job where seq = any (%(seqs)s::bigint[]);

-- name: jobs_to_prune
-- Find some jobs of one finished state that ended before a moment, earliest first; locked, so that none of them is
-- requeued meanwhile.
select seq from holdfast.job
 where finished_at_ms is not null and state = %(state)s and finished_at_ms < %(before)s
 order by finished_at_ms, seq
 limit %(limit)s
/* lock: for update skip locked */;
