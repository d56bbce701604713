-- Routing: lanes, routes, the catalog of kinds, and the version that every operation checks.

-- name: job_fair_key
-- Write the fair_key of jobs after the order of their lane has changed, one job for each row of values.
update holdfast_job
   set fair_key = ?1, rare_state = case when rare_state is not null or ?1 = '' then state end
 where seq = ?2;

-- name: kind_publish
-- Write what a worker publishes about its tasks, one kind for each row of values.
insert into holdfast_kind (kind, options, timeout_ms, session, schema, published_by, published_at_ms)
values (?, ?, ?, ?, ?, ?, ?)
on conflict (kind) do update
   set options = excluded.options, timeout_ms = excluded.timeout_ms, session = excluded.session,
       schema = excluded.schema, published_by = excluded.published_by, published_at_ms = excluded.published_at_ms;

-- name: kind_restore
-- Let a retired kind accept jobs again.
update holdfast_kind set retired_at_ms = null where kind = :kind and retired_at_ms is not null returning kind;

-- name: kind_retire
-- Store that a kind is retired.
insert into holdfast_kind (kind, retired_at_ms) values (:kind, :now)
on conflict (kind) do update set retired_at_ms = coalesce(holdfast_kind.retired_at_ms, excluded.retired_at_ms);

-- name: lane_write
-- Store the settings of a lane.
insert into holdfast_lane (lane, state, lane_order, events, backoff, max_waiting, target_age_ms)
values (:lane, :state, :lane_order, :events, :backoff, :max_waiting, :target_age_ms)
on conflict (lane) do update
   set state = excluded.state, lane_order = excluded.lane_order, events = excluded.events,
       backoff = excluded.backoff, max_waiting = excluded.max_waiting, target_age_ms = excluded.target_age_ms;

-- name: route_insert
-- Insert one route unless it exists, and return its number.
insert into holdfast_route (lane, kind, requires, has_affinity, session)
values (:lane, :kind, :requires, :has_affinity, :session)
on conflict (lane, kind, requires, has_affinity, session) do update set lane = excluded.lane
returning route;

-- name: routing_kinds
-- Read every kind that is published or retired.
select kind, options, timeout_ms, session, schema, published_by, published_at_ms, retired_at_ms from holdfast_kind
 where published_at_ms is not null or retired_at_ms is not null;

-- name: routing_lanes
-- Read every configured lane.
select lane, state, lane_order, events, backoff, max_waiting, target_age_ms / 1000.0 from holdfast_lane;

-- name: routing_lock
-- Does nothing: the only writer needs no lock on the routing table.
select 1;

-- name: routing_routes
-- Read every route.
select route, lane, kind, requires, has_affinity, session from holdfast_route;

-- name: routing_touch
-- Assign the routing table a new, unique version, which invalidates caches of old or rolled-back ones.
update holdfast_meta set value = :version where name = 'routing_version';

-- name: routing_version
-- Read the version of lanes, routes and kinds.
select value from holdfast_meta where name = 'routing_version';
