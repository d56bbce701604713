-- Read the first events of the log with their moments, for pruning a prefix that nobody can add to any more.
select xid::text::bigint, event, at_ms from holdfast.event
 where xid < pg_snapshot_xmin(pg_current_snapshot())
 order by xid, event
 limit %(limit)s
