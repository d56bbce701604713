-- Routing: lanes, routes, retired kinds, and the version that every operation checks.

-- name: job_fair_key
-- Put jobs into the fair_key their lane's order wants, one for each row of values.
update holdfast_job set fair_key = ? where seq = ?;

-- name: kind_restore
-- Let a retired kind take jobs again.
delete from holdfast_retired_kind where kind = :kind returning kind;

-- name: kind_retire
-- Note that a kind takes no more jobs.
insert into holdfast_retired_kind (kind, retired_at_ms) values (:kind, :now) on conflict (kind) do nothing;

-- name: lane_write
-- Store how a lane is configured.
insert into holdfast_lane (lane, state, lane_order, events, backoff)
values (:lane, :state, :lane_order, :events, :backoff)
on conflict (lane) do update
   set state = excluded.state, lane_order = excluded.lane_order, events = excluded.events,
       backoff = excluded.backoff;

-- name: route_insert
-- Intern one route and tell its number.
insert into holdfast_route (lane, kind, requires, placed, session)
values (:lane, :kind, :requires, :placed, :session)
on conflict (lane, kind, requires, placed, session) do update set lane = excluded.lane
returning route;

-- name: routing_lanes
-- Read every configured lane.
select lane, state, lane_order, events, backoff from holdfast_lane;

-- name: routing_lock
-- Keep everybody else from deciding by the routing table: the only writer there can be has done so already.
select 1;

-- name: routing_retired
-- Read every retired kind.
select kind from holdfast_retired_kind;

-- name: routing_routes
-- Read every route.
select route, lane, kind, requires, placed, session from holdfast_route;

-- name: routing_touch
-- Give the routing table another version, unique, so that nobody goes on with an old or a rolled-back one.
update holdfast_meta set value = :version where name = 'routing_version';

-- name: routing_version
-- Read the version under which lanes, routes and retired kinds stand.
select value from holdfast_meta where name = 'routing_version';
