-- Count the events before a moment, up to the first that is not, as pruning deletes them; tell whether there is one.
with young as (
    select xid, event from holdfast.event
     where at_ms >= %(before)s and xid < pg_snapshot_xmin(pg_current_snapshot())
     order by xid, event
     limit 1
)
select (select count(*) from holdfast.event e
         where e.xid < pg_snapshot_xmin(pg_current_snapshot())
           and not exists (select 1 from young y where (e.xid, e.event) >= (y.xid, y.event))),
       exists (select 1 from young)
