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
-- Delete the log after the horizon up to one event of one transaction. Without the limit a scan would not stop at that
-- event but at the last one of its transaction.
delete from holdfast.event
 where ctid = any (array(select ctid from holdfast.event
                          where (xid, event) > (%(after_transaction)s::xid8, %(after_event)s)
                            and (xid, event) <= (%(transaction)s::xid8, %(event)s)
                          order by xid, event
                          limit %(limit)s));

-- name: events_head
-- Read the first events after the horizon with their timestamps, to prune a prefix to which no transaction can add
-- events. The order names the columns of the table: the result has a column `xid` too, by which the server would sort.
select e.xid::text::bigint, e.event, e.at_ms from holdfast.event e
 where (e.xid, e.event) > (%(transaction)s::xid8, %(event)s) and e.xid < pg_snapshot_xmin(pg_current_snapshot())
 order by e.xid, e.event
 limit %(limit)s;

-- name: jobs_delete
-- Delete jobs.
delete from holdfast.job where seq = any (%(seqs)s::bigint[]);

-- name: jobs_to_prune
-- Find and lock some jobs of one finished state that finished before a time, earliest first, after one of them.
select finished_at_ms, seq from holdfast.job
 where finished_at_ms is not null and state = %(state)s and finished_at_ms < %(before)s
   and (finished_at_ms, seq) > (%(finished_after)s, %(after)s)
   and (awaited = 0
        or not exists (select 1 from holdfast.edge e join holdfast.job c on c.seq = e.child
                        where e.parent = job.seq and c.finished_at_ms is null)
       and not exists (select 1 from holdfast.edge e join holdfast.job_group g on g.number = -e.child
                        where e.parent = job.seq and e.child < 0
                          and (g.ended_at_ms is null
                               or exists (select 1 from holdfast.edge f join holdfast.job c on c.seq = f.child
                                           where f.parent = -g.number and c.finished_at_ms is null))))
 order by finished_at_ms, seq
 limit %(limit)s
/* lock: for update skip locked */;
