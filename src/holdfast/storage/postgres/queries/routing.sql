-- Routing: lanes, routes, the catalog of kinds, and the version that every operation checks.

-- name: job_fair_key
-- Write the fair_key of jobs after the order of their lane has changed.
with changed as (
    update holdfast.job j set fair_key = v.fair_key
      from unnest(%(c0)s::text[], %(c1)s::bigint[]) as v (fair_key, seq)
     where j.seq = v.seq
 returning j.seq, j.fair_key
),
placed as (
    update holdfast.ready_job r set fair_key = c.fair_key from changed c where r.seq = c.seq
),
opened as (
    update holdfast.open_job o set fair_key = c.fair_key from changed c where o.seq = c.seq
)
select count(*) from changed;

-- name: kind_publish
-- Write what a worker publishes about its tasks.
insert into holdfast.kind (kind, options, timeout_ms, session, schema, published_by, published_at_ms)
select * from unnest(
    %(c0)s::text[], %(c1)s::text[], %(c2)s::bigint[], %(c3)s::smallint[], %(c4)s::text[], %(c5)s::text[],
    %(c6)s::bigint[]
)
on conflict (kind) do update
   set options = excluded.options, timeout_ms = excluded.timeout_ms, session = excluded.session,
       schema = excluded.schema, published_by = excluded.published_by, published_at_ms = excluded.published_at_ms;

-- name: kind_restore
-- Let a retired kind accept jobs again.
update holdfast.kind set retired_at_ms = null where kind = %(kind)s and retired_at_ms is not null returning kind;

-- name: kind_retire
-- Store that a kind is retired.
insert into holdfast.kind (kind, retired_at_ms) values (%(kind)s, %(now)s)
on conflict (kind) do update set retired_at_ms = coalesce(kind.retired_at_ms, excluded.retired_at_ms);

-- name: lane_write
-- Store the settings of a lane.
insert into holdfast.lane (lane, state, lane_order, events, backoff, max_waiting, target_age_ms)
values (%(lane)s, %(state)s, %(lane_order)s, %(events)s, %(backoff)s, %(max_waiting)s, %(target_age_ms)s)
on conflict (lane) do update
   set state = excluded.state, lane_order = excluded.lane_order, events = excluded.events,
       backoff = excluded.backoff, max_waiting = excluded.max_waiting, target_age_ms = excluded.target_age_ms;

-- name: route_insert
-- Insert one route unless it exists, and return its number.
insert into holdfast.route (lane, kind, requires, has_affinity, session)
values (%(lane)s, %(kind)s, %(requires)s, %(has_affinity)s, %(session)s)
on conflict (lane, kind, requires, has_affinity, session) do update set lane = excluded.lane
returning route;

-- name: routing_kinds
-- Read every kind that is published or retired.
select kind, options, timeout_ms, session, schema, published_by, published_at_ms, retired_at_ms from holdfast.kind
 where published_at_ms is not null or retired_at_ms is not null;

-- name: routing_lanes
-- Read every configured lane.
select lane, state, lane_order, events, backoff, max_waiting, (target_age_ms / 1000.0)::float8 from holdfast.lane;

-- name: routing_lock
-- Lock the routing table exclusively until the transaction ends.
select holdfast.lock_routing();

-- name: routing_routes
-- Read every route.
select route, lane, kind, requires, has_affinity, session from holdfast.route;

-- name: routing_touch
-- Assign the routing table a new, unique version, which invalidates caches of old or rolled-back ones.
update holdfast.meta set value = %(version)s where name = 'routing_version';

-- name: routing_version
-- Read the version of lanes, routes and kinds; write transactions take a shared lock on it.
select holdfast.routing_version(false /* lock: or true */);
