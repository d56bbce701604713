-- Read the log after one event, in order, as far as no transaction can add to it any more.
select e.xid::text::bigint, e.event, e.name, e.at_ms, e.job_id, e.number, r.kind, r.lane, e.tenant, e.tags,
       e.state, e.attempt, e.epoch, e.worker, e.due_at_ms, e.failure_class, e.failure_reason
  from (select * from holdfast.event
         where (xid, event) > (%(transaction)s::xid8, %(event)s) and xid < pg_snapshot_xmin(pg_current_snapshot())
         order by xid, event
         limit %(limit)s) e
  join holdfast.route r on r.route = e.route
 order by e.xid, e.event
