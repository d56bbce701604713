-- Read the log after one event, in order, as far as no transaction can add to it any more.
select xid::text::bigint, event, name, at_ms, job_id, number, kind, lane, tenant, tags, details
  from holdfast.event
 where (xid, event) > (%(transaction)s::xid8, %(event)s) and xid < pg_snapshot_xmin(pg_current_snapshot())
 order by xid, event
 limit %(limit)s
