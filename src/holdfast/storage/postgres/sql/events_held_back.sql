-- Tell whether the log has more after one event, which an open transaction keeps from being read.
select exists (select 1 from holdfast.event
                where (xid, event) > (%(transaction)s::xid8, %(event)s)
                  and xid >= pg_snapshot_xmin(pg_current_snapshot()))
