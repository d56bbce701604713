-- Tell for how many seconds the oldest transaction of the server has been open: it holds back events and clearing up.
select coalesce(max(extract(epoch from clock_timestamp() - xact_start)), 0)::bigint from pg_stat_activity
 where backend_xid is not null or backend_xmin is not null
