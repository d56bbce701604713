-- Routing: lanes, routes, retired kinds, and the version that every operation checks.

-- name: job_fair_key
-- Write the fair_key of jobs after the order of their lane has changed.
update holdfast.job j set fair_key = v.fair_key
  from unnest(%(c0)s::text[], %(c1)s::bigint[]) as v (fair_key, seq)
 where j.seq = v.seq;

-- name: kind_restore
-- Let a retired kind accept jobs again.
delete from holdfast.retired_kind where kind = %(kind)s returning kind;

-- name: kind_retire
-- Store that a kind is retired.
insert into holdfast.retired_kind (kind, retired_at_ms) values (%(kind)s, %(now)s) on conflict (kind) do nothing;

-- name: lane_write
-- Store the settings of a lane.
insert into holdfast.lane (lane, state, lane_order, events, backoff)
values (%(lane)s, %(state)s, %(lane_order)s, %(events)s, %(backoff)s)
on conflict (lane) do update
   set state = excluded.state, lane_order = excluded.lane_order, events = excluded.events,
       backoff = excluded.backoff;

-- name: route_insert
-- Insert one route unless it exists, and return its number.
insert into holdfast.route (lane, kind, requires, has_affinity, session)
values (%(lane)s, %(kind)s, %(requires)s, %(has_affinity)s, %(session)s)
on conflict (lane, kind, requires, has_affinity, session) do update set lane = excluded.lane
returning route;

-- name: routing_lanes
-- Read every configured lane.
select lane, state, lane_order, events, backoff from holdfast.lane;

-- name: routing_lock
-- Lock the routing table exclusively until the transaction ends.
select holdfast.lock_routing();

-- name: routing_retired
-- Read every retired kind.
select kind from holdfast.retired_kind;

-- name: routing_routes
-- Read every route.
select route, lane, kind, requires, has_affinity, session from holdfast.route;

-- name: routing_touch
-- Assign the routing table a new, unique version, which invalidates caches of old or rolled-back ones.
update holdfast.meta set value = %(version)s where name = 'routing_version';

-- name: routing_version
-- Read the version of lanes, routes and retired kinds; write transactions take a shared lock on it.
select holdfast.routing_version(false /* lock: or true */);
