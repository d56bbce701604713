-- The foundation: jobs, their attempts and artifacts, sessions, lanes, routes, fair_keys, workers, events.
-- Names are compared byte by byte (collation "C"), like the domain's order, in a database of any language.

-- The store's clock, which each transaction reads once.
create function holdfast.clock_ms() returns bigint language sql volatile as
$$ select (date_part('epoch', clock_timestamp()) * 1000)::bigint $$;

-- Every write transaction begins with this function: it sets local settings and returns the clock. It is a function
-- so that its plans are cached. Statistics may be old or missing; regardless of them, a claim must scan its index in
-- order, look up each job by its number, and stop early. Full scans then appear expensive to the planner, but those
-- tables are small; JIT compilation and replanning are not worthwhile. If a client is silent for as long as other
-- transactions wait for a lock, it is assumed stopped or disconnected, and the server releases its locks.
create function holdfast.begin_ms(lock_ms integer) returns bigint language plpgsql volatile as
$$
begin
    perform set_config('lock_timeout', lock_ms::text, true),
            set_config('idle_in_transaction_session_timeout', lock_ms::text, true),
            set_config('enable_bitmapscan', 'off', true),
            set_config('enable_seqscan', 'off', true), set_config('enable_hashjoin', 'off', true),
            set_config('enable_mergejoin', 'off', true), set_config('jit', 'off', true),
            set_config('plan_cache_mode', 'force_generic_plan', true);
    return holdfast.clock_ms();
end
$$;

-- Single values: the lowest code version that may use this schema, the routing version, the event horizon, the wall
-- clock time that was noted last, to detect that it was set back, the position of the webhook dispatcher, and the identity
-- of this store, to detect a connection to another one.
create table holdfast.meta (
    name  text collate "C" primary key,
    value text not null
);

insert into holdfast.meta (name, value) values
    ('code_version_min', '0.1.0'),
    ('routing_version', '0'),
    ('edges', '0'),
    ('limits', '0'),
    ('noted_ms', '0'),
    ('event_horizon', '0-0'),
    ('webhook_position', '0-0 0 '),
    ('identity', gen_random_uuid()::text);

-- Lock dedupe keys and chosen ids, each as a number, until the transaction ends. Every call locks them in order, so
-- that calls with the same keys wait for each other and do not deadlock.
create function holdfast.hold_keys(keys integer[]) returns void language plpgsql volatile as
$$
declare
    held integer;
begin
    foreach held in array keys loop
        perform pg_advisory_xact_lock('holdfast.open_job_dedupe'::regclass::oid::integer, held);
    end loop;
end
$$;

-- The routing table's version. A transaction that reads it holds a shared lock on the routing table until it ends.
-- This must be a function: a plain statement that waits for a lock still sees the snapshot from before it waited.
create function holdfast.routing_version(held boolean, keys integer[] default '{}') returns text
language plpgsql volatile as
$$
begin
    if held then
        perform pg_advisory_xact_lock_shared('holdfast.meta'::regclass::oid::integer, 1);
        perform holdfast.hold_keys(keys);
    end if;
    return (select value from holdfast.meta where name = 'routing_version');
end
$$;

-- Lock the routing table exclusively, in order to change it. A waiting lock request blocks all later ones, so a
-- single long-open transaction would block all others: wait only briefly, let the others proceed, and retry until the
-- lock timeout of the transaction has passed.
create function holdfast.lock_routing() returns void language plpgsql volatile as
$$
declare
    busy_timeout_ms constant integer := (select setting from pg_settings where name = 'lock_timeout');
    tried_until constant timestamptz := clock_timestamp() + busy_timeout_ms * interval '1 millisecond';
begin
    loop
        begin
            perform set_config('lock_timeout', least(busy_timeout_ms, 100)::text, true);
            perform pg_advisory_xact_lock('holdfast.meta'::regclass::oid::integer, 1);
            perform set_config('lock_timeout', busy_timeout_ms::text, true);
            return;
        exception when lock_not_available then
            if clock_timestamp() >= tried_until then
                raise;
            end if;
        end;
        perform pg_sleep(0.1 + random() * 0.2);
    end loop;
end
$$;

-- Configured lanes; any other lane has the defaults.
create table holdfast.lane (
    target_age_ms bigint,
    max_waiting   integer,
    late       integer not null default 0,
    lane       text collate "C" primary key,
    state      text not null check (state in ('active', 'paused', 'draining')),
    lane_order text not null check (lane_order in ('fair', 'strict')),
    events     text not null check (events in ('terminal', 'all')),
    backoff    text not null check (backoff in ('block', 'skip'))
);

-- The catalog of kinds: what workers publish about their tasks, and which kinds are retired and accept no new jobs.
create table holdfast.kind (
    kind            text collate "C" primary key,
    options         text,
    timeout_ms      bigint,
    session         smallint,
    schema          text,
    published_by    text,
    published_at_ms bigint,
    retired_at_ms   bigint
);

-- Tokens of the HTTP service: grants, and the SHA-256 of the secret. Roles, scopes and ceilings are JSON.
create table holdfast.token (
    id              text collate "C" primary key,
    name            text not null,
    hash            text not null,
    tenant          text,
    roles           text not null,
    scopes          text not null,
    ceilings        text not null,
    created_at_ms   bigint not null,
    expires_at_ms   bigint,
    last_used_at_ms bigint,
    revoked_at_ms   bigint
);

-- Webhooks: endpoints, which events are delivered to them, the secrets that sign deliveries, and whether the endpoint
-- is closed. Types, kinds, lanes, tags, secrets and the places of sending processes are JSON.
create table holdfast.webhook (
    id                 text collate "C" primary key,
    url                text not null,
    tenant             text,
    types              text not null,
    kinds              text,
    lanes              text,
    tags               text not null,
    include_results    integer not null,
    concurrency        integer not null,
    per_job            integer not null,
    state              text not null check (state in ('active', 'disabled')),
    reason             text,
    created_at_ms      bigint not null,
    since_ms           bigint not null,
    last_success_at_ms bigint,
    failing_since_ms   bigint,
    closed_until_ms    bigint,
    last_answer        text,
    secrets            text not null,
    closings           integer not null,
    probe_until_ms     bigint,
    places             text not null
);

-- The URLs to which jobs send their events. A row is deleted after its job, once all its events have been read.
create table holdfast.webhook_job (
    job_id text collate "C" primary key,
    url    text not null
);

-- What waits for a time or for another row: look at this target once the time has passed, or at once if it is 0, also
-- when the clock is set back. Claims fold these rows.
create table holdfast.wake (
    wake   bigint primary key generated always as identity,
    at_ms  bigint not null,
    number bigint not null,
    target text not null check (target in ('schedule', 'child', 'parent', 'group', 'gate', 'requeue', 'lanes'))
) with (
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0
);
create index wake_at on holdfast.wake (at_ms, wake);
create index wake_target on holdfast.wake (target, number);

-- Schedules. Each that is not paused has one wake row, at its next tick. Options and the next ticks are JSON.
create table holdfast.schedule (
    number         bigint primary key generated always as identity,
    every_ms       bigint,
    last_at_ms     bigint not null,
    last_tick_ms   bigint,
    set_at_ms      bigint not null,
    declared_at_ms bigint,
    paused         smallint not null,
    tenant         text collate "C" not null,
    name           text collate "C" not null,
    kind           text not null,
    payload        text not null,
    options        text not null,
    cron           text,
    zone           text not null,
    missed         text not null check (missed in ('one', 'skip')),
    overlap        text not null check (overlap in ('allow', 'skip')),
    owner          text,
    ticks          text not null,
    last_job_id    text,
    problem        text,
    unique (tenant, name)
) with (fillfactor = 50);

-- Dependencies: the child runs after the parent has ended. `ended` is the number of the state in which it has, once the
-- child was told. A job with `awaited` appends a wake row when it ends. A group is a child of its members, and the parent
-- of its callbacks, by its number times -1.
create table holdfast.edge (
    child     bigint not null,
    parent    bigint not null,
    place     integer not null,
    ended     smallint,
    on_failed text not null check (on_failed in ('cancel', 'run')),
    primary key (child, parent)
);
create index edge_parent on holdfast.edge (parent, child);
create index edge_pending on holdfast.edge (child, parent)
    where ended is null;
create index edge_waiting on holdfast.edge (parent, child)
    where ended is null;

-- Failures of jobs, for lists and counts by fingerprint, and what failures with one fingerprint have in common, by
-- tenant and lane. The frames are JSON. `last_at_ms` is exact to the minute, so that most failures write no pattern.
create table holdfast.failure_pattern (
    first_at_ms bigint not null,
    last_at_ms  bigint not null,
    fingerprint text collate "C" not null,
    tenant      text collate "C" not null,
    lane        text collate "C" not null,
    kind        text collate "C" not null,
    error       text not null,
    frames      text not null,
    message     text not null,
    primary key (fingerprint, tenant, lane)
);
create index failure_pattern_last on holdfast.failure_pattern (last_at_ms desc, fingerprint, tenant, lane);

create table holdfast.failure (
    at_ms       bigint not null,
    seq         bigint not null,
    fingerprint text collate "C" not null,
    tenant      text collate "C" not null,
    lane        text collate "C" not null,
    primary key (fingerprint, at_ms, seq)
);
create index failure_owner on holdfast.failure (fingerprint, tenant, lane, at_ms, seq);
create index failure_at on holdfast.failure (at_ms);

-- Groups: how many members have ended, as far as their wake rows were folded, and the callbacks, as JSON.
create table holdfast.job_group (
    number           bigint primary key generated always as identity,
    created_at_ms    bigint not null,
    ended_at_ms      bigint,
    members          integer not null,
    done             integer not null,
    failed           integer not null,
    cancelled        integer not null,
    retired          integer not null,
    sealed           smallint not null,
    tenant           text collate "C" not null,
    name             text collate "C" not null,
    on_end           text,
    on_success       text,
    on_first_failure text,
    token            text not null,
    problem          text,
    unique (tenant, name)
) with (fillfactor = 50);
create index job_group_ended on holdfast.job_group (ended_at_ms)
    where ended_at_ms is not null;

-- Limits by key. Kinds and lanes are JSON; null means any.
create table holdfast.flow_limit (
    number      bigint primary key generated always as identity,
    period_ms   bigint,
    concurrency integer,
    rate        integer,
    burst       integer,
    name        text collate "C" not null unique,
    kinds       text,
    lanes       text,
    key_source  text not null,
    weight      text
);

-- Gates: a limit for one key. A claim of its jobs, or an offer to parked ones, locks the row. A gate may outlive its limit,
-- until nothing waits at it.
create table holdfast.gate (
    gate            bigint primary key generated always as identity,
    flow_limit      bigint not null,
    until_us        bigint not null default 0,
    closed_until_ms bigint not null default 0,
    wake_at_ms      bigint not null default 0,
    key             text collate "C" not null,
    turns           text not null default '{}',
    unique (flow_limit, key)
) with (fillfactor = 50);
create index gate_closed on holdfast.gate (closed_until_ms)
    where closed_until_ms > 0;

-- The keys and weights that jobs were given for limits.
create table holdfast.limit_key (
    seq    bigint primary key,
    weight integer,
    key    text
);

-- How much more than their weight jobs have used at a gate, negative if less, until a fold corrects the gate.
create table holdfast.gate_usage (
    number bigint primary key generated always as identity,
    gate   bigint not null,
    amount bigint not null
);
create index gate_usage_gate on holdfast.gate_usage (gate);

-- What processes counted in a stretch of time: arrivals, ends by outcome, and histograms, by lane and kind, as JSON.
create table holdfast.rollup (
    number   bigint primary key generated always as identity,
    at_ms    bigint not null,
    width_ms integer not null,
    data     text not null
);
create index rollup_at on holdfast.rollup (at_ms);
create index rollup_width on holdfast.rollup (width_ms, at_ms);

-- What operators did, on the command line and over HTTP.
create table holdfast.audit (
    entry  bigint primary key generated always as identity,
    at_ms  bigint not null,
    actor  text not null,
    action text not null,
    target text not null,
    detail text not null
);

-- Each combination of lane, kind, required capabilities, "names an affinity" and "is an entry of a session", as a
-- small number.
create table holdfast.route (
    route    integer generated always as identity primary key,
    lane     text collate "C" not null,
    kind     text collate "C" not null,
    requires text collate "C" not null,
    has_affinity   smallint not null,
    session  smallint not null,
    unique (lane, kind, requires, has_affinity, session)
);

-- The route of a job, as a function: a locking clause does not apply to rows from a function, so locking jobs never
-- locks the routes they share. The planner inlines it like a join.
create function holdfast.route_of(number integer)
returns table (kind text, lane text, requires text) language sql stable as
$$ select r.kind, r.lane, r.requires from holdfast.route r where r.route = number $$;

-- The fair_key served last in each fairness scope. Only a hint for fairness.
create table holdfast.fair_key (
    scope      text collate "C" primary key,
    fair_key       text collate "C" not null,
    used_at_ms bigint not null
) with (fillfactor = 50);

-- The starts of exclusive workers; the newest is valid, claims of the others are refused.
create table holdfast.incarnation (
    worker        text collate "C" not null,
    incarnation   text collate "C" not null,
    started_at_ms bigint not null,
    superseded    smallint not null default 0,
    primary key (worker, incarnation)
);
-- Two concurrent starts cannot both be the newest.
create unique index incarnation_newest on holdfast.incarnation (worker) where superseded = 0;

-- The registry of workers: their settings, the time of their last report, and how often calls of the process that wrote
-- it took their plain form, as JSON. For information only.
create table holdfast.worker (
    worker         text collate "C" not null,
    incarnation    text collate "C" not null,
    host           text not null,
    process        bigint not null,
    version        text not null,
    state          text not null,
    concurrency    integer not null,
    running        bigint not null,
    lanes          text not null,
    kinds          text not null,
    capabilities   text not null,
    loaded         text not null,
    switches       bigint not null,
    switches_saved bigint not null,
    hold_left_ms   bigint,
    forms          text not null,
    requested      text,
    started_at_ms  bigint not null,
    beat_at_ms     bigint not null,
    primary key (worker, incarnation)
) with (fillfactor = 50);
create index worker_beat on holdfast.worker (beat_at_ms);

-- Lock gates, in order, and return them. Wait a little for those that others have locked, then leave them out.
create function holdfast.lock_gates_1(gates bigint[], wait_ms integer)
returns setof holdfast.gate language plpgsql volatile as
$$
declare
    busy_timeout_ms constant text := current_setting('lock_timeout');
    missing bigint[];
    locked bigint[];
    one bigint;
begin
    select coalesce(array_agg(l.gate), '{}') into locked
      from (select g.gate from holdfast.gate g where g.gate = any (gates) order by g.gate for update skip locked) l;
    select array_agg(m.gate order by m.gate) into missing
      from unnest(gates) as m (gate) join holdfast.gate g on g.gate = m.gate
     where m.gate <> all (locked);
    if missing is not null and wait_ms > 0 then
        perform set_config('lock_timeout', wait_ms::text, true);
        foreach one in array missing loop
            begin
                perform 1 from holdfast.gate g where g.gate = one for update;
                locked := locked || one;
            exception when lock_not_available then
                exit;
            end;
        end loop;
        perform set_config('lock_timeout', busy_timeout_ms, true);
    end if;
    return query select g.* from holdfast.gate g where g.gate = any (locked) order by g.gate;
end
$$;

-- Lock some running jobs on routes, after a number, and return their numbers. Those that others have locked are waited for,
-- a little: a heartbeat holds its jobs until its commit, and must not hide them.
create function holdfast.lock_running_1(on_routes integer[], after bigint, jobs_max integer, wait_ms integer)
returns bigint[] language plpgsql volatile as
$$
declare
    busy_timeout_ms constant text := current_setting('lock_timeout');
    running constant bigint[] := array(
        select j.seq from holdfast.lease l
         cross join lateral unnest(l.seqs) as u (seq)
          join holdfast.job j on j.seq = u.seq
         where j.seq > after and j.state = 'running' and j.route = any (on_routes)
         order by j.seq limit jobs_max);
    locked bigint[] := array(
        select j.seq from holdfast.job j where j.seq = any (running) order by j.seq for update skip locked);
    one bigint;
begin
    if cardinality(locked) < cardinality(running) then
        perform set_config('lock_timeout', wait_ms::text, true);
        foreach one in array running loop
            continue when one = any (locked);
            begin
                perform 1 from holdfast.job j where j.seq = one for update;
                locked := locked || one;
            exception when lock_not_available then
                exit;
            end;
        end loop;
        perform set_config('lock_timeout', busy_timeout_ms, true);
    end if;
    return locked;
end
$$;

-- Numbers in enqueue order, never reused.
create sequence holdfast.job_seq;

-- Jobs. No index names a column that a claim or a settlement changes, and pages keep room for a second version of each
-- row, so that these changes write no index entries. The columns that change are last, those that only a claim changes
-- before those that a settlement changes as well: the write-ahead log gets the columns from the first changed one on.
create table holdfast.job (
    seq               bigint primary key,
    enqueued_at_ms    bigint not null,
    due_at_ms         bigint not null,
    route             integer not null,
    priority          integer not null,
    max_attempts      integer not null,
    deferrals         integer not null default 0,
    releases          integer not null default 0,
    record_all        smallint not null,
    awaited           smallint not null default 0,
    id                text collate "C" not null unique,
    tenant            text collate "C" not null,
    fair_key          text collate "C" not null,
    headers           text collate "C" not null,
    tags              text collate "C" not null,
    payload           text collate "C" not null,
    deadline_at_ms    bigint,
    deferred_since_ms bigint,
    predecessor       bigint,
    session           bigint,
    enqueue_seq       bigint,
    affinity          text collate "C",
    dedupe_key        text collate "C",
    dedupe_kind       text collate "C",
    digest            text,
    parent            text collate "C",
    root              text collate "C",
    entry             text collate "C",
    backoff           text collate "C",
    gate              bigint,
    started_at_ms     bigint,
    attempt           integer not null default 0,
    epoch             integer not null default 0,
    claim_index       integer,
    worker            text collate "C",
    incarnation       text collate "C",
    lease_token       text collate "C",
    lease_until_ms    bigint,
    finished_at_ms    bigint,
    percent           double precision,
    event_count       integer not null,
    cancel_requested  smallint not null default 0,
    unacknowledged    smallint not null default 0,
    suspect           smallint not null default 0,
    state             text collate "C" not null,
    outcome           text collate "C",
    settle_digest     text collate "C",
    phase             text collate "C",
    failure_class     text collate "C",
    failure_reason    text collate "C",
    failure_message   text collate "C",
    failure_traceback text collate "C",
    result            text collate "C"
) with (
    fillfactor = 28,
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_insert_scale_factor = 0.1,
    autovacuum_analyze_scale_factor = 0.05,
    autovacuum_analyze_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0
);

-- Jobs that have a parent, by the first job of their tree, and the entries of a session by age; other jobs are in
-- neither index.
create index job_root on holdfast.job (root)
    where root is not null;
create index job_session on holdfast.job (session, seq)
    where session is not null;

-- The ready jobs, in the orders in which claims find them. A row of these two tables is written only by a transaction
-- that has locked or stored the row of the job. `again` is 1 once anything but the enqueue has written the row, `has_open`
-- if the job has a row in `open_job` too. An insert opens every index of a table, also those that do not get the row: only
-- those that claims read in order belong here.
create table holdfast.ready_job (
    seq       bigint primary key,
    due_at_ms bigint not null,
    route     integer not null,
    priority  integer not null,
    again     smallint not null default 0,
    has_open  smallint not null default 0,
    tenant    text collate "C" not null,
    fair_key  text collate "C" not null,
    affinity  text collate "C"
) with (
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_analyze_scale_factor = 0.05,
    autovacuum_analyze_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0
);

-- What other indexes find of jobs that are not finished: of all that wait and are not ready, of ready ones that have a
-- deadline or a gate or are suspect, and of ready and running ones that have a dedupe key or a session. Other jobs have
-- no row. The worker and its incarnation are those of suspect jobs.
create table holdfast.open_job (
    seq            bigint primary key,
    due_at_ms      bigint not null,
    deadline_at_ms bigint,
    predecessor    bigint,
    session        bigint,
    enqueue_seq    bigint,
    gate           bigint,
    route          integer not null,
    priority       integer not null,
    epoch          integer not null default 0,
    suspect        smallint not null default 0,
    state          text collate "C" not null,
    tenant         text collate "C" not null,
    fair_key       text collate "C" not null,
    dedupe_key     text collate "C",
    dedupe_kind    text collate "C",
    worker         text collate "C",
    incarnation    text collate "C"
) with (
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_analyze_scale_factor = 0.05,
    autovacuum_analyze_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0
);

-- Write what indexes find of jobs whose rows the caller has changed, and return how many jobs these are. Rows are deleted
-- first: a successor may get the dedupe key of its predecessor. A transaction may have waited since it read the time at
-- which jobs are due; then this counts as backdated (see there).
create function holdfast.place_1(changed bigint[]) returns integer language plpgsql volatile as
$$
declare
    ready bigint[];
    not_ready bigint[];
    opened bigint[];
    not_opened bigint[];
    is_late boolean;
begin
    select array_agg(p.seq) filter (where p.is_ready), array_agg(p.seq) filter (where not p.is_ready),
           array_agg(p.seq) filter (where p.is_open), array_agg(p.seq) filter (where not p.is_open),
           bool_or(p.is_ready and p.due_at_ms < holdfast.clock_ms() - 500)
      into ready, not_ready, opened, not_opened, is_late
      from (select j.seq, j.due_at_ms, j.state = 'ready' as is_ready,
                   j.finished_at_ms is null
                   and (j.state not in ('ready', 'running') or j.dedupe_key is not null or j.session is not null
                        or j.state = 'ready' and (j.deadline_at_ms is not null or j.gate is not null or j.suspect = 1))
                   as is_open
              from holdfast.job j where j.seq = any (changed)) p;
    if not_ready is not null then
        delete from holdfast.ready_job r where r.seq = any (not_ready);
    end if;
    if not_opened is not null then
        delete from holdfast.open_job o where o.seq = any (not_opened);
    end if;
    if is_late then
        perform nextval('holdfast.backdated');
    end if;
    if opened is not null then
        insert into holdfast.open_job as o (
            seq, due_at_ms, deadline_at_ms, predecessor, session, enqueue_seq, gate, route, priority, epoch, suspect,
            state, tenant, fair_key, dedupe_key, dedupe_kind, worker, incarnation
        )
        select j.seq, j.due_at_ms, j.deadline_at_ms, j.predecessor, j.session, j.enqueue_seq, j.gate, j.route, j.priority,
               j.epoch, j.suspect, j.state, j.tenant, j.fair_key, j.dedupe_key, j.dedupe_kind,
               case when j.suspect = 1 then j.worker end, case when j.suspect = 1 then j.incarnation end
          from holdfast.job j
         where j.seq = any (opened)
        on conflict (seq) do update
           set due_at_ms = excluded.due_at_ms, deadline_at_ms = excluded.deadline_at_ms, predecessor = excluded.predecessor,
               gate = excluded.gate, epoch = excluded.epoch, suspect = excluded.suspect, state = excluded.state,
               fair_key = excluded.fair_key, worker = excluded.worker, incarnation = excluded.incarnation;
    end if;
    if ready is not null then
        insert into holdfast.ready_job as r (seq, due_at_ms, route, priority, again, has_open, tenant, fair_key, affinity)
        select j.seq, j.due_at_ms, j.route, j.priority, 1, case when j.seq = any (opened) then 1 else 0 end, j.tenant,
               j.fair_key, j.affinity
          from holdfast.job j
         where j.seq = any (ready)
        on conflict (seq) do update
           set due_at_ms = excluded.due_at_ms, again = 1, has_open = excluded.has_open, fair_key = excluded.fair_key;
    end if;
    return cardinality(changed);
end
$$;

-- The running jobs of each claim, and when to look whether their leases have expired: never later than the first of
-- them does. A heartbeat extends the lease in the row of the job; maintenance moves the time here when it has passed, and
-- deletes the row when no job runs under the claim. Other transactions never wait for these rows.
create table holdfast.lease (
    until_ms bigint not null,
    worker   text collate "C" not null,
    token    text collate "C" not null,
    seqs     bigint[] not null,
    primary key (worker, token)
) with (
    fillfactor = 85,
    toast_tuple_target = 8160, -- compressing the numbers takes longer than writing them
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0
);
create index lease_until on holdfast.lease (until_ms);

-- The jobs of each claim that gates count while they run under it, with the gate of each: one row for each block of eight
-- gates, those whose numbers differ only in the last three bits. The rows are deleted with that of the claim. Several may name
-- the same claim and block, and even the same job: the check that there is none takes longer than counting them.
create table holdfast.permit (
    block  bigint not null,
    token  text collate "C" not null,
    worker text collate "C" not null,
    gates  bigint[] not null,
    seqs   bigint[] not null
) with (
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0
);
create index permit_block on holdfast.permit (block);
create index permit_token on holdfast.permit (token);

-- Finished jobs by state and finish time, for lists and retention: one row for those that a transaction has finished,
-- with their numbers and event counts. A job that was requeued has another event count or is not finished.
create table holdfast.ended (
    finished_at_ms bigint not null,
    number         bigint not null generated always as identity,
    state          text collate "C" not null,
    seqs           bigint[] not null,
    event_counts   integer[] not null,
    primary key (state, finished_at_ms, number)
) with (toast_tuple_target = 8160);

-- The tags of jobs, for filters. Jobs without tags have no rows.
create table holdfast.tag (
    seq   bigint not null,
    tag   text collate "C" not null,
    value text collate "C" not null,
    primary key (tag, value, seq)
);

-- Store one plain job, due at once, if the routing table still has the caller's version; return its number and the clock.
-- This function and the other plain forms are whole transactions: a call sends nothing before it, so they set what
-- `begin_ms` sets. One value takes less time to return than columns, an assignment less than a statement.
create function holdfast.job_store(
    known_version text, route integer, tenant text, fair_key text, priority integer, affinity text, headers text, tags text,
    max_attempts integer, backoff text, clock_ms bigint, id text, payload text
) returns bigint[] language plpgsql volatile set lock_timeout = '10s' as
$$
#variable_conflict use_variable
declare
    seq bigint;
    now_ms bigint;
    lock text;
    transaction xid8;
begin
    -- As `routing_version` does it, without the calls.
    lock := pg_advisory_xact_lock_shared('holdfast.meta'::regclass::oid::integer, 1);
    if (select value from holdfast.meta where name = 'routing_version') <> known_version then
        return null;
    end if;
    -- The transaction gets its number first: see `ready_since_1`.
    transaction := pg_current_xact_id();
    seq := nextval('holdfast.job_seq');
    now_ms := coalesce(clock_ms, (date_part('epoch', clock_timestamp()) * 1000)::bigint);
    insert into holdfast.job (
        route, seq, id, state, tenant, fair_key, priority, affinity, payload, headers, tags,
        enqueued_at_ms, due_at_ms, max_attempts, backoff, record_all, event_count
    ) values (
        route, seq, id, 'ready', tenant, fair_key, priority, affinity, payload, headers, tags,
        now_ms, now_ms, max_attempts, backoff, 0, 0
    );
    insert into holdfast.ready_job (seq, due_at_ms, route, priority, tenant, fair_key, affinity)
    values (seq, now_ms, route, priority, tenant, fair_key, affinity);
    if tags <> '{}' then
        insert into holdfast.tag (tag, value, seq) select o.key, o.value, seq from json_each_text(tags::json) o;
    end if;
    return array[seq, now_ms];
end
$$;

-- As `job_store`, for jobs that differ only in id and payload.
create function holdfast.jobs_store(
    known_version text, route integer, tenant text, fair_key text, priority integer, affinity text, headers text, tags text,
    max_attempts integer, backoff text, clock_ms bigint, ids text[], payloads text[], out seqs bigint[], out now_ms bigint
) language plpgsql volatile set lock_timeout = '10s' as
$$
begin
    perform pg_advisory_xact_lock_shared('holdfast.meta'::regclass::oid::integer, 1);
    if (select value from holdfast.meta where name = 'routing_version') = known_version then
        perform pg_current_xact_id();
        seqs := array(select nextval('holdfast.job_seq') from generate_series(1, cardinality(ids)));
        now_ms := coalesce(clock_ms, (date_part('epoch', clock_timestamp()) * 1000)::bigint);
        insert into holdfast.job (
            route, seq, id, state, tenant, fair_key, priority, affinity, payload, headers, tags,
            enqueued_at_ms, due_at_ms, max_attempts, backoff, record_all, event_count
        )
        select route, n.seq, n.id, 'ready', tenant, fair_key, priority, affinity, n.payload, headers, tags,
               now_ms, now_ms, max_attempts, backoff, 0, 0
          from unnest(seqs, ids, payloads) as n (seq, id, payload);
        insert into holdfast.ready_job (seq, due_at_ms, route, priority, tenant, fair_key, affinity)
        select n.seq, now_ms, route, priority, tenant, fair_key, affinity from unnest(seqs) as n (seq);
        if tags <> '{}' then
            insert into holdfast.tag (tag, value, seq)
            select o.key, o.value, n.seq from unnest(seqs) as n (seq) cross join json_each_text(tags::json) o;
        end if;
    end if;
end
$$;

-- One index serves order, fairness and filters: per route the highest priority, then the next fair_key, then its
-- first job.
create index ready_job_order on holdfast.ready_job (route, priority desc, fair_key, due_at_ms, seq);

-- Jobs that something but the enqueue has made ready, by due time: claims that read new jobs by number find them here.
create index ready_job_again on holdfast.ready_job (route, due_at_ms, seq)
    where again = 1;

-- The same order within one affinity; it contains only jobs that name one.
create index ready_job_affinity on holdfast.ready_job (route, priority desc, affinity, fair_key, due_at_ms, seq)
    where affinity is not null;

-- Strict lanes have no fair_keys by which to find a tenant; these two indexes contain only their jobs.
create index ready_job_strict on holdfast.ready_job (tenant, route, priority desc, due_at_ms, seq)
    where fair_key = '';
create index ready_job_strict_affinity on holdfast.ready_job (tenant, route, priority desc, affinity, due_at_ms, seq)
    where fair_key = '' and affinity is not null;

-- Scheduled jobs, by due time; blocked and dependent ones.
create index open_job_scheduled on holdfast.open_job (due_at_ms, seq)
    where state = 'scheduled';
create index open_job_held_back on holdfast.open_job (state)
    where state in ('blocked', 'dependent');

-- Suspect jobs, whose last attempt expired; there are few.
create index open_job_suspect on holdfast.open_job (state, worker, incarnation)
    where suspect = 1;

-- Waiting jobs with a deadline.
create index open_job_deadline on holdfast.open_job (deadline_at_ms)
    where deadline_at_ms is not null and state in ('scheduled', 'blocked', 'dependent', 'parked', 'ready');

-- Jobs at gates: running ones hold a permit, ready ones were offered one, parked ones wait in the order of claims.
create index open_job_gate on holdfast.open_job (gate, state, route, priority desc, fair_key, due_at_ms, seq)
    where gate is not null and state in ('parked', 'ready');

-- At most one unfinished job per dedupe key, and at most one blocked successor.
create unique index open_job_dedupe on holdfast.open_job (tenant, dedupe_kind, dedupe_key)
    where dedupe_key is not null and state in ('scheduled', 'dependent', 'parked', 'ready', 'running');
create unique index open_job_successor on holdfast.open_job (tenant, dedupe_kind, dedupe_key)
    where dedupe_key is not null and state = 'blocked';
create index open_job_predecessor on holdfast.open_job (predecessor)
    where state = 'blocked';

-- Session entries that are not finished: all of them, those in line, running ones, scheduled ones.
create index open_job_session on holdfast.open_job (session, seq)
    where session is not null;
create index open_job_line on holdfast.open_job (session, enqueue_seq)
    where session is not null and (state = 'ready' or state = 'parked' or (state = 'scheduled' and epoch > 0));
create index open_job_session_running on holdfast.open_job (session)
    where session is not null and state = 'running';
create index open_job_session_scheduled on holdfast.open_job (session, due_at_ms)
    where session is not null and state = 'scheduled';

-- Sessions: counters, the lease of the owner, the newest claim, and the head that is claimable. A row stays when
-- its entries are deleted, so that epochs never restart. Each turn updates it a few times.
create table holdfast.session (
    number            bigint generated always as identity primary key,
    enqueue_seq       bigint not null default 0,
    fence             bigint not null default 0,
    generation        bigint not null default 0,
    lease_until_ms    bigint,
    head_seq          bigint,
    head_route        integer,
    tenant            text collate "C" not null,
    name              text collate "C" not null,
    lease_token       text collate "C",
    lease_worker      text collate "C",
    lease_incarnation text collate "C",
    claim_id          text collate "C",
    head_entry_type   text collate "C",
    head_fair_key     text collate "C",
    unique (tenant, name)
) with (
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0
);

-- Claimable heads: per route and entry type the next fair_key, then the oldest head.
create index session_head on holdfast.session (head_route, head_entry_type, head_fair_key, head_seq)
    where head_seq is not null;
create index session_strict on holdfast.session (tenant, head_route, head_entry_type, head_seq)
    where head_seq is not null and head_fair_key = '';

-- Session leases by expiry.
create index session_lease on holdfast.session (lease_until_ms)
    where lease_until_ms is not null;

-- A session as the code reads it: columns in the order of its fields.
create view holdfast.session_row as
select number, tenant, name, enqueue_seq, fence, generation, lease_token, lease_worker, lease_incarnation,
       lease_until_ms, claim_id, head_route, head_entry_type, head_fair_key, head_seq
  from holdfast.session;

-- Message ids used in a session. A row outlives its entry and then records when the entry was deleted.
create table holdfast.session_message_id (
    session        bigint not null,
    seq            bigint not null,
    enqueue_seq    bigint not null,
    enqueued_at_ms bigint not null,
    deleted_at_ms  bigint,
    route          integer not null,
    message_id     text collate "C" not null,
    id             text collate "C" not null,
    entry          text collate "C" not null,
    state          text collate "C",
    primary key (session, message_id)
);
create index session_message_id_seq on holdfast.session_message_id (seq);
create index session_message_id_deleted on holdfast.session_message_id (deleted_at_ms)
    where deleted_at_ms is not null;

-- Dedupe keys that are kept for a period, each with its first job. A row outlives its job and then records when the job
-- was deleted. Rows whose period has passed are deleted by maintenance.
create table holdfast.kept_key (
    until_ms       bigint not null,
    seq            bigint not null,
    enqueued_at_ms bigint not null,
    deleted_at_ms  bigint,
    route          integer not null,
    tenant         text collate "C" not null,
    dedupe_kind    text collate "C" not null,
    dedupe_key     text collate "C" not null,
    id             text collate "C" not null,
    state          text collate "C",
    primary key (tenant, dedupe_kind, dedupe_key)
);
create index kept_key_until on holdfast.kept_key (until_ms);
create index kept_key_seq on holdfast.kept_key (seq);

-- A job as the code reads it: columns in the order of its fields.
create view holdfast.job_row as
select j.seq, j.id, j.state, r.kind, r.lane, j.tenant, j.fair_key, j.priority, j.affinity,
       r.requires as requires_json, j.payload as payload_json, j.headers as headers_json, j.tags as tags_json,
       j.result as result_json, j.enqueued_at_ms, j.due_at_ms, j.deadline_at_ms, j.finished_at_ms,
       j.attempt, j.max_attempts, j.backoff as backoff_json, j.epoch, j.worker, j.incarnation, j.lease_token,
       j.lease_until_ms, j.claim_index, j.started_at_ms, j.outcome, j.settle_digest, j.phase, j.percent, j.unacknowledged,
       j.cancel_requested, j.suspect, j.deferrals, j.deferred_since_ms, j.releases, j.failure_class,
       j.failure_reason, j.failure_message, j.failure_traceback, j.dedupe_key, j.dedupe_kind, j.predecessor,
       j.digest, j.parent, j.root, j.session as session_number, j.enqueue_seq, j.entry as entry_json, j.record_all, j.event_count
  from holdfast.job j
 cross join lateral holdfast.route_of(j.route) r;

-- Attempts that ended before their job finished; the newest attempt is in the job's own row.
create table holdfast.attempt (
    seq               bigint not null,
    epoch             integer not null,
    number            integer not null,
    worker            text not null,
    incarnation       text not null,
    started_at_ms     bigint not null,
    ended_at_ms       bigint not null,
    outcome           text not null,
    failure_class     text,
    failure_reason    text,
    failure_message   text,
    failure_traceback text,
    lease_token       text,
    settle_digest     text,
    primary key (seq, epoch)
);

-- Named bytes that belong to a job. The bytes are those of an upload.
create table holdfast.artifact (
    seq           bigint not null,
    size          bigint not null,
    created_at_ms bigint not null,
    epoch         integer not null,
    input         boolean not null,
    name          text collate "C" not null,
    media_type    text not null,
    digest        text not null,
    upload        text collate "C" not null,
    primary key (seq, name)
);

-- Bytes in chunks. An upload that no artifact has expires and is deleted; the others have no expiry.
create table holdfast.upload (
    size          bigint not null,
    expires_at_ms bigint,
    chunks        integer not null,
    upload        text collate "C" primary key,
    tenant        text not null,
    digest        text
);
create index upload_expiry on holdfast.upload (expires_at_ms)
    where expires_at_ms is not null;

create table holdfast.upload_chunk (
    number integer not null,
    upload text collate "C" not null,
    data   bytea not null,
    primary key (upload, number)
);
-- Most artifacts are already compressed.
alter table holdfast.upload_chunk alter column data set storage external;

-- The output of jobs, appended by their attempts. `part` is the index within the attempt, `size` the bytes so far.
create table holdfast.output (
    seq     bigint not null,
    number  bigint not null,
    part    bigint not null,
    size    bigint not null,
    at_ms   bigint not null,
    epoch   integer not null,
    attempt integer not null,
    data    text not null,
    primary key (seq, number)
);

-- The event log, pruned only from its start. A row is the event of one job or, if they differ in nothing else, of up to
-- a thousand: the event of the first has the number of the row, those of the others follow. Transactions become visible in a different order than they begin in, so
-- the log is read in transaction order, and only up to the oldest open transaction.
create table holdfast.event (
    xid            xid8 not null default pg_current_xact_id(),
    event          bigint not null generated always as identity (increment by 1000),
    at_ms          bigint not null,
    due_at_ms      bigint,
    route          integer not null,
    number         integer not null,
    attempt        integer not null,
    epoch          integer not null,
    name           text not null,
    tenant         text not null,
    tags           text not null,
    state          text not null,
    worker         text,
    failure_class  text,
    failure_reason text,
    job_ids        text[] not null,
    primary key (xid, event)
) with (
    toast_tuple_target = 8160,
    autovacuum_vacuum_scale_factor = 0.05,
    autovacuum_vacuum_insert_scale_factor = 0.1
);
-- Compressing the ids would take longer than writing them.
alter table holdfast.event alter column job_ids set storage external;

-- Counts changes that make jobs ready whose due time has long passed, so that claims skip no such job. A transaction
-- counts before it writes, when it has its number.
create sequence holdfast.backdated;

-- The plain forms of claims and of what attempts write. Their names carry a version, so that code of two versions can
-- use one schema. A call is one message of up to three functions in one transaction: the guard, settlements, a claim.
-- If the guard refuses, the functions after it do nothing; if a lease is lost, all is rolled back.

-- Hold the routing table and check that a plain form may claim: the caller knows the newest routing, no claim has the
-- chosen token, no wake row is due, and no job is due, expired or late after the times up to which none was.
create function holdfast.plain_guard_1(
    known_version text, clock_ms bigint, lease_clock_ms bigint, wall_low bigint, lease_low bigint, of_worker text,
    chosen_token text, examines boolean, out refused text, out wall_ms bigint, out lease_ms bigint, out oldest_open bigint,
    out backdated bigint, out last_seq bigint
) language plpgsql volatile
    set lock_timeout = '10s' set enable_bitmapscan = off set enable_seqscan = off set enable_hashjoin = off
    set enable_mergejoin = off set jit = off set plan_cache_mode = force_generic_plan as
$$
declare
    before_all constant bigint := 9223372036854775807;
    snapshot pg_snapshot;
    next_transaction bigint;
begin
    wall_ms := coalesce(clock_ms, holdfast.clock_ms());
    lease_ms := coalesce(lease_clock_ms, wall_ms);
    -- A transaction has its number before it draws numbers of jobs. So those that have drawn one up to this have lower
    -- numbers than this transaction, which has none yet.
    last_seq := coalesce(pg_sequence_last_value('holdfast.job_seq'::regclass), 0);
    if chosen_token is not null then
        perform pg_advisory_xact_lock('holdfast.job'::regclass::oid::integer,
                                      hashtext(concat_ws(chr(10), of_worker, chosen_token)));
    end if;
    -- As `routing_version` does it, without the calls.
    perform pg_advisory_xact_lock_shared('holdfast.meta'::regclass::oid::integer, 1);
    if (select value from holdfast.meta where name = 'routing_version') <> known_version then
        refused := 'routing';
    elsif chosen_token is not null then
        -- By itself: starting a statement takes time even if its first condition is false.
        if exists (
            select 1 from holdfast.lease l
             cross join lateral unnest(l.seqs) as u (seq)
              join holdfast.job j on j.seq = u.seq
             where l.worker = of_worker and l.token = chosen_token
               and j.state = 'running' and j.worker = of_worker and j.lease_token = chosen_token
        ) then
            refused := 'token';
        end if;
    end if;
    if refused is null and holdfast.is_due_1(wall_low, wall_low, wall_ms, lease_low, lease_ms) then
        refused := 'due';
    end if;
    -- Transactions before this one have ended.
    snapshot := pg_current_snapshot();
    oldest_open := pg_snapshot_xmin(snapshot)::text::bigint;
    if examines then
        next_transaction := pg_snapshot_xmax(snapshot)::text::bigint;
        -- Of transactions that are open for long, only those matter that hold the routing table, as every one does that
        -- makes jobs ready. The server shows the low half of their numbers.
        oldest_open := (
            select coalesce(min(next_transaction + (t.transactionid::text::bigint - next_transaction)::bit(32)::integer),
                            before_all)
              from pg_locks h
              join pg_locks t on t.virtualtransaction = h.virtualtransaction and t.locktype = 'transactionid' and t.mode = 'ExclusiveLock'
             where h.locktype = 'advisory' and h.granted and h.objid = 1
               and h.classid = 'holdfast.meta'::regclass::oid
        );
    end if;
    backdated := coalesce(pg_sequence_last_value('holdfast.backdated'::regclass), 0);
    if refused is not null then
        perform set_config('holdfast_plain.form', 'off', true);
    end if;
end
$$;

-- Whether a lease has expired after a time up to which none had. If *writes*, first move the times of claims whose leases
-- were extended and delete those of which no job runs, unless another transaction does. A transaction that only reads
-- may not even lock rows.
create function holdfast.has_expired_1(lease_low bigint, lease_ms bigint, writes boolean) returns boolean
language plpgsql volatile as
$$
declare
    looked record;
    first bigint;
begin
    if writes then
        for looked in
            select l.worker, l.token, l.seqs from holdfast.lease l
             where l.until_ms > lease_low and l.until_ms <= lease_ms
             order by l.until_ms
               for update skip locked
        loop
            select min(j.lease_until_ms) into first from holdfast.job j
             where j.seq = any (looked.seqs) and j.state = 'running' and j.worker = looked.worker
               and j.lease_token = looked.token;
            if first is null then
                delete from holdfast.lease l where l.worker = looked.worker and l.token = looked.token;
                delete from holdfast.permit p where p.worker = looked.worker and p.token = looked.token;
            elsif first > lease_ms then
                update holdfast.lease l set until_ms = first where l.worker = looked.worker and l.token = looked.token;
            else
                return true;
            end if;
        end loop;
    end if;
    return exists (
        select 1 from holdfast.lease l
         cross join lateral unnest(l.seqs) as u (seq)
          join holdfast.job j on j.seq = u.seq
         where l.until_ms > lease_low and l.until_ms <= lease_ms
           and j.state = 'running' and j.worker = l.worker and j.lease_token = l.token and j.lease_until_ms <= lease_ms
    );
end
$$;

-- Read some running jobs whose lease has expired, claim by claim; if *locks*, lock them and skip those that others have
-- locked. As one statement it could read all jobs, if there are many claims: the planner does not know how few expire.
create function holdfast.jobs_expired_1(lease_ms bigint, jobs_max bigint, locks boolean)
returns setof holdfast.job_row language plpgsql volatile as
$$
declare
    looked record;
    missing bigint := jobs_max;
    found_jobs integer;
begin
    for looked in
        select l.worker, l.token, l.seqs from holdfast.lease l where l.until_ms <= lease_ms order by l.until_ms
    loop
        if locks then
            return query
            select j.* from holdfast.job_row j
             where j.seq = any (looked.seqs) and j.state = 'running' and j.worker = looked.worker
               and j.lease_token = looked.token and j.lease_until_ms <= lease_ms
             limit missing
               for update of j skip locked;
        else
            return query
            select j.* from holdfast.job_row j
             where j.seq = any (looked.seqs) and j.state = 'running' and j.worker = looked.worker
               and j.lease_token = looked.token and j.lease_until_ms <= lease_ms
             limit missing;
        end if;
        get diagnostics found_jobs = row_count;
        missing := missing - found_jobs;
        exit when missing <= 0;
    end loop;
end
$$;

-- Take jobs out of the indexes of waiting ones, with the gates that count them if there are any, and store when the leases
-- of their claim expire. The caller has locked the jobs and updates their rows. *places* is where their rows were found.
create function holdfast.take_1(
    by_worker text, by_token text, lease_until_ms bigint, taken bigint[], gates bigint[] default '{}', places tid[] default null
) returns boolean language plpgsql volatile as
$$
declare
    deleted integer;
begin
    if places is not null then
        -- A row may have moved before its job was locked, and another may be in its place. With `+ 0` the number cannot
        -- be looked up in an index: if the statistics say that the table is empty, the planner would read all of it.
        delete from holdfast.ready_job r using unnest(taken, places) as t (seq, place)
         where r.ctid = t.place and r.seq + 0 = t.seq and r.has_open = 0;
    else
        delete from holdfast.ready_job r where r.seq = any (taken) and r.has_open = 0;
    end if;
    get diagnostics deleted = row_count;
    if deleted < cardinality(taken) then
        delete from holdfast.ready_job r where r.seq = any (taken);
        delete from holdfast.open_job o where o.seq = any (taken) and o.dedupe_key is null and o.session is null;
        update holdfast.open_job o
           set state = 'running', epoch = o.epoch + 1, gate = case when cardinality(gates) > 0 then g.gate else o.gate end
          from unnest(taken, gates) as g (seq, gate)
         where o.seq = g.seq;
    end if;
    insert into holdfast.lease as l (worker, token, until_ms, seqs) values (by_worker, by_token, lease_until_ms, taken)
    on conflict (token, worker) do update
       set until_ms = least(l.until_ms, excluded.until_ms),
           seqs = array(select distinct u.seq from unnest(l.seqs || excluded.seqs) as u (seq));
    if cardinality(array_remove(gates, null)) > 0 then
        insert into holdfast.permit (block, token, worker, gates, seqs)
        select g.gate >> 3, by_token, by_worker, array_agg(g.gate), array_agg(g.seq) from unnest(taken, gates) as g (seq, gate)
         where g.gate is not null
         group by g.gate >> 3;
    end if;
    return true;
end
$$;

-- Delete the rows of claims of which no job runs any more, after some jobs were settled. Most settlements end a claim or
-- the first jobs of it, so the last ones are looked at first; maintenance deletes what is left.
create function holdfast.drop_leases_1(settled bigint[], workers text[], tokens text[]) returns void
language plpgsql volatile as
$$
declare
    held record;
    distinct_tokens text[] := tokens[1:1];
begin
    if tokens[1] <> any (tokens) then
        distinct_tokens := array(select distinct t.token from unnest(tokens) as t (token));
    end if;
    for held in
        select l.worker, l.token, l.seqs, cardinality(l.seqs) as jobs from holdfast.lease l
         where l.worker = any (workers) and l.token = any (distinct_tokens)
           for update skip locked
    loop
        if held.seqs <> settled then
            continue when
                exists (select 1 from unnest(held.seqs) as u (seq) where u.seq not in (select s.seq from unnest(settled) as s (seq)))
                and (exists (select 1 from holdfast.job j
                              where j.seq = any (held.seqs[held.jobs - 7 : held.jobs])
                                and j.state = 'running' and j.lease_token = held.token)
                     or exists (select 1 from holdfast.job j
                                 where j.seq = any (held.seqs) and j.state = 'running' and j.lease_token = held.token));
        end if;
        delete from holdfast.lease l where l.worker = held.worker and l.token = held.token;
        delete from holdfast.permit p where p.worker = held.worker and p.token = held.token;
    end loop;
end
$$;

-- Whether a job is due, expired or late after the times up to which none was, or a wake row is due.
create function holdfast.is_due_1(
    wall_low bigint, deadline_low bigint, wall_ms bigint, lease_low bigint, lease_ms bigint
) returns boolean language plpgsql volatile as
$$
begin
    return exists (select 1 from holdfast.open_job j
                    where j.state = 'scheduled' and j.due_at_ms > wall_low and j.due_at_ms <= wall_ms)
        or exists (select 1 from holdfast.lease l where l.until_ms > lease_low and l.until_ms <= lease_ms)
           and holdfast.has_expired_1(lease_low, lease_ms, true)
        or exists (select 1 from holdfast.open_job j
                    where j.deadline_at_ms is not null and j.state in ('scheduled', 'blocked', 'dependent', 'parked', 'ready')
                      and j.deadline_at_ms > deadline_low and j.deadline_at_ms <= wall_ms)
        or exists (select 1 from holdfast.wake w where w.at_ms <= wall_ms);
end
$$;

-- Count the running jobs that hold a permit of a gate.
create function holdfast.gate_running_1(of_gate bigint) returns bigint language plpgsql stable as
$$
begin
    return (select count(distinct u.seq) from holdfast.permit p
             cross join lateral unnest(p.gates, p.seqs) as u (gate, seq)
             where p.block = of_gate >> 3 and u.gate = of_gate
               and (select j.state = 'running' and j.gate = of_gate and j.worker = p.worker and j.lease_token = p.token
                      from holdfast.job j where j.seq = u.seq));
end
$$;

-- Append wake rows of the gates of jobs that have ended, where others are parked or that were closed. The shared
-- lock, held until the commit, tells a transaction that parks jobs that some are ending (`gates_ending_1`). If it has to
-- wait for one, the next statement sees what was parked.
create function holdfast.wake_gates_1(gates bigint[]) returns void language plpgsql volatile as
$$
begin
    perform pg_advisory_xact_lock_shared('holdfast.gate'::regclass::oid::integer, b.bucket)
       from (select distinct (g.gate >> 3 & 63)::integer as bucket from unnest(gates) as g (gate) order by 1) b;
    if not exists (select 1 from holdfast.open_job j where j.gate is not null and j.state in ('parked', 'ready'))
       and not exists (select 1 from holdfast.gate g where g.closed_until_ms > 0) then
        return;
    end if;
    insert into holdfast.wake (at_ms, target, number)
    select 0, 'gate', g.gate from holdfast.gate g
     where g.gate = any (gates)
       and (g.closed_until_ms > 0
            or exists (select 1 from holdfast.open_job j where j.gate = g.gate and j.state = 'parked'));
end
$$;

-- Return those of these gates of which jobs may be ending, or have ended since so many were counted as running. At the
-- others, whatever ends waits for this transaction, and then sees what it has parked.
create function holdfast.gates_ending_1(gates bigint[], running bigint[]) returns setof bigint language plpgsql volatile as
$$
declare
    one record;
begin
    for one in select g.gate, g.running from unnest(gates, running) as g (gate, running) loop
        if not pg_try_advisory_xact_lock('holdfast.gate'::regclass::oid::integer, (one.gate >> 3 & 63)::integer)
           or holdfast.gate_running_1(one.gate) < one.running then
            return next one.gate;
        end if;
    end loop;
end
$$;

-- Finish jobs as done whose leases are held, with their events and wake rows, and acknowledge claims; roll back if a
-- lease is lost. Jobs that differ only in their number and id are one row. The numbers are in order, and a nested loop
-- and a hash keep it. What most jobs do not need is a statement of its own. A list of epochs, tokens or results has one
-- element if it is that of all jobs: an array of texts is read from its start to find one of them.
create function holdfast.settle_1(
    clock_ms bigint, lease_clock_ms bigint, seqs bigint[], epochs integer[], tokens text[], results text[],
    started_seqs bigint[], started_epochs integer[], started_tokens text[]
) returns table (
    wall_ms bigint, settled_seqs bigint[], priority integer, phase text, percent double precision,
    cancel_requested smallint, event_count integer
) language plpgsql volatile
    set lock_timeout = '10s' set enable_bitmapscan = off set enable_seqscan = off set enable_hashjoin = off
    set enable_mergejoin = off set jit = off set plan_cache_mode = force_generic_plan as
$$
#variable_conflict use_column
declare
    now_ms constant bigint := coalesce(clock_ms, holdfast.clock_ms());
    one_epoch constant integer := case when cardinality(epochs) = 1 then epochs[1] end;
    one_token constant text := case when cardinality(tokens) = 1 then tokens[1] end;
    one_result constant text := case when cardinality(results) = 1 then results[1] end;
    alike record;
    finished bigint[];
    counts integer[];
    linked bigint[];
    awaited bigint[];
    workers text[] := '{}';
    gates bigint[];
begin
    if current_setting('holdfast_plain.form', true) = 'off' then
        return;
    end if;
    for alike in
    with ended as (
        update holdfast.job j
           set state = 'done', outcome = 'done', result = coalesce(one_result, results[width_bucket(j.seq, seqs)]),
               event_count = j.event_count + 1,
               finished_at_ms = now_ms, lease_until_ms = null, suspect = 0, unacknowledged = 0,
               failure_class = null, failure_reason = null, failure_message = null, failure_traceback = null
         where j.seq = any (seqs)
           and j.epoch = coalesce(one_epoch, epochs[width_bucket(j.seq, seqs)])
           and j.lease_token = coalesce(one_token, tokens[width_bucket(j.seq, seqs)])
           and j.lease_until_ms > coalesce(lease_clock_ms, holdfast.clock_ms())
     returning j.seq, j.id, j.priority, j.phase, j.percent, j.cancel_requested, j.event_count,
               j.route, j.tenant, j.tags, j.attempt, j.epoch, j.worker, j.awaited, j.gate,
               j.dedupe_key is not null or j.session is not null as is_linked
    )
    select array_agg(e.seq) as seqs, array_agg(e.id) as ids, array_agg(e.gate) filter (where e.gate is not null) as gates,
           e.priority, e.phase, e.percent, e.cancel_requested, e.event_count, e.route, e.tenant, e.tags, e.attempt, e.epoch,
           e.worker, e.awaited, e.is_linked
      from ended e
     group by e.priority, e.phase, e.percent, e.cancel_requested, e.event_count, e.route, e.tenant, e.tags, e.attempt,
              e.epoch, e.worker, e.awaited, e.is_linked
     order by min(e.seq)
    loop
        insert into holdfast.event (name, at_ms, job_ids, number, route, tenant, tags, state, attempt, epoch, worker)
        values ('done', now_ms, alike.ids, alike.event_count, alike.route, alike.tenant, alike.tags, 'done',
                alike.attempt, alike.epoch, alike.worker);
        finished := finished || alike.seqs;
        counts := counts || array_fill(alike.event_count, array[cardinality(alike.seqs)]);
        if alike.is_linked then
            linked := linked || alike.seqs;
        end if;
        if alike.awaited = 1 then
            awaited := awaited || alike.seqs;
        end if;
        if alike.worker <> all (workers) then
            workers := workers || alike.worker;
        end if;
        gates := gates || alike.gates;
        wall_ms := now_ms;
        settled_seqs := alike.seqs;
        priority := alike.priority;
        phase := alike.phase;
        percent := alike.percent;
        cancel_requested := alike.cancel_requested;
        event_count := alike.event_count;
        return next;
    end loop;
    if coalesce(cardinality(finished), 0) <> cardinality(seqs) then
        raise exception 'a lease is lost' using errcode = 'HF001';
    end if;
    if finished is not null then
        insert into holdfast.ended (state, finished_at_ms, seqs, event_counts) values ('done', now_ms, finished, counts);
        if linked is not null then
            delete from holdfast.open_job o where o.seq = any (linked);
        end if;
        if awaited is not null then
            insert into holdfast.wake (at_ms, target, number) select 0, 'parent', a.seq from unnest(awaited) as a (seq);
        end if;
        if gates is not null then
            perform holdfast.wake_gates_1(gates);
        end if;
        perform holdfast.drop_leases_1(seqs, workers, tokens);
    end if;
    if cardinality(started_seqs) > 0 then
        update holdfast.job j set unacknowledged = 0
          from unnest(started_seqs, started_epochs, started_tokens) as s (seq, epoch, lease_token)
         where j.seq = s.seq and j.epoch = s.epoch and j.lease_token = s.lease_token and j.state = 'running'
           and j.lease_until_ms > coalesce(lease_clock_ms, holdfast.clock_ms());
    end if;
end
$$;

-- Extend leases that are held, write their progress and acknowledge them; roll back if one is lost.
create function holdfast.heartbeat_1(
    lease_clock_ms bigint, seqs bigint[], epochs integer[], tokens text[], lengths bigint[], acknowledges smallint[],
    phases text[], percents double precision[]
) returns table (seq bigint, lease_until_ms bigint, cancel_requested smallint) language plpgsql volatile
    set lock_timeout = '10s' set enable_bitmapscan = off set enable_seqscan = off set enable_hashjoin = off
    set enable_mergejoin = off set jit = off set plan_cache_mode = force_generic_plan as
$$
#variable_conflict use_column
declare
    extended integer;
begin
    return query
    update holdfast.job j
       set lease_until_ms = greatest(j.lease_until_ms,
                                     coalesce(lease_clock_ms, holdfast.clock_ms()) + lengths[width_bucket(j.seq, seqs)]),
           unacknowledged = case when acknowledges[width_bucket(j.seq, seqs)] = 1 then 0 else j.unacknowledged end,
           phase = coalesce(phases[width_bucket(j.seq, seqs)], j.phase),
           percent = coalesce(percents[width_bucket(j.seq, seqs)], j.percent)
     where j.seq = any (seqs)
       and j.epoch = epochs[width_bucket(j.seq, seqs)] and j.lease_token = tokens[width_bucket(j.seq, seqs)]
       and j.lease_until_ms > coalesce(lease_clock_ms, holdfast.clock_ms())
    returning j.seq, j.lease_until_ms, j.cancel_requested;
    get diagnostics extended = row_count;
    if extended <> cardinality(seqs) then
        raise exception 'a lease is lost' using errcode = 'HF001';
    end if;
end
$$;

-- For each route: its highest priority with ready jobs, and the first and last fair_key there, from scan positions on.
create function holdfast.ready_tops_1(
    routes integer[], mark_priorities integer[], mark_keys text[], mark_dues bigint[], mark_seqs bigint[]
) returns table (route integer, priority integer, first_key text, last_key text) language sql stable as
$$
with found as materialized (
    select m.*, coalesce(
             (select j.priority from holdfast.ready_job j
               where j.route = m.route and j.priority > m.priority
               order by j.priority desc limit 1),
             (select j.priority from holdfast.ready_job j
               where j.route = m.route and j.priority = m.priority
                 and (j.fair_key, j.due_at_ms, j.seq) >= (m.fair_key, m.due_at_ms, m.seq)
               order by j.fair_key, j.due_at_ms, j.seq limit 1),
             (select j.priority from holdfast.ready_job j
               where j.route = m.route and j.priority < coalesce(m.priority, 2147483647)
               order by j.priority desc limit 1)
           ) as top
      from unnest(routes, mark_priorities, mark_keys, mark_dues, mark_seqs) as m (route, priority, fair_key, due_at_ms, seq)
)
select f.route, f.top,
       (select j.fair_key from holdfast.ready_job j
         where j.route = f.route and j.priority = f.top
           and (j.fair_key, j.due_at_ms, j.seq) >= (case when f.top = f.priority then f.fair_key else '' end,
                                                    case when f.top = f.priority then f.due_at_ms else -1 end,
                                                    case when f.top = f.priority then f.seq else -1 end)
         order by j.fair_key, j.due_at_ms, j.seq limit 1),
       (select j.fair_key from holdfast.ready_job j
         where j.route = f.route and j.priority = f.top
         order by j.fair_key desc limit 1)
  from found f
 where f.top is not null;
$$;

-- For each route: the next fair_keys with ready jobs at one priority, starting after the one served last and wrapping
-- around, at most so many of them.
create function holdfast.ready_fair_keys_1(routes integer[], at_priority integer, last_key text, maximum integer)
returns table (route integer, fair_key text) language sql stable as
$$
with recursive
later (route, fair_key, depth) as (
    select r.route, (select j.fair_key from holdfast.ready_job j
                      where j.route = r.route and j.priority = at_priority
                        and j.fair_key > coalesce(last_key, '')
                      order by j.fair_key limit 1), 1
      from unnest(routes) as r (route)
    union all
    select l.route, (select j.fair_key from holdfast.ready_job j
                      where j.route = l.route and j.priority = at_priority
                        and j.fair_key > l.fair_key
                      order by j.fair_key limit 1), l.depth + 1
      from later l where l.fair_key is not null and l.depth < maximum
),
earlier (route, fair_key, depth) as (
    select r.route, (select j.fair_key from holdfast.ready_job j
                      where j.route = r.route and j.priority = at_priority
                      order by j.fair_key limit 1), 1
      from unnest(routes) as r (route)
    union all
    select e.route, (select j.fair_key from holdfast.ready_job j
                      where j.route = e.route and j.priority = at_priority
                        and j.fair_key > e.fair_key
                      order by j.fair_key limit 1), e.depth + 1
      from earlier e where e.fair_key <= coalesce(last_key, '') and e.depth < maximum
),
found (route, fair_key) as (
    select l.route, l.fair_key from later l where l.fair_key is not null
    union all
    select e.route, e.fair_key from earlier e where e.fair_key <= coalesce(last_key, '')
)
select f.route, f.fair_key
  from found f
  join (select n.fair_key from found n group by n.fair_key
         order by last_key is not null and n.fair_key <= last_key, n.fair_key limit maximum) reached on reached.fair_key = f.fair_key;
$$;

-- Take room at the gates of jobs, which are locked, and return the gate that counts each while it runs, if one does: that of
-- its limit on how many run. If a job has no room, a gate is closed or locked, or another gate has offered a job room,
-- return null: nothing was written. A limit is given once for each route that it concerns, with what a start and the burst
-- cost if it has a rate.
create function holdfast.pass_gates_1(
    picked bigint[], job_places tid[], job_routes integer[], tenants text[], offering bigint[], now_ms bigint,
    limit_routes integer[], limit_numbers bigint[], key_sources text[], concurrencies integer[], start_costs_us bigint[],
    burst_costs_us bigint[]
) returns bigint[] language plpgsql volatile as
$$
declare
    -- One row for each job and limit of it where it has a key: the place of the job, that of the limit, the gate.
    gate_jobs bigint[];
    gate_places bigint[];
    gates bigint[];
    gate_rows tid[];
    used_until_us bigint[];
    is_closed boolean;
    counting bigint[];
    -- One row for each gate with a rate, and how far starts use it up.
    rate_rows tid[];
    rates_until_us bigint[];
    is_full boolean;
    has_one_each boolean;
    blocks bigint[];
    lowest constant integer := (select min(c.concurrency) from unnest(concurrencies) as c (concurrency));
    -- One row for each job and limit of it, without or with a key.
    jobs bigint[];
    places bigint[];
    numbers bigint[];
    keys text[];
    keys_given bigint;
begin
    -- Usually each job has one key, and its gate exists and is free.
    -- A gate that several jobs share is found and locked for each; grouping them takes as long.
    select array_agg(l.job), array_agg(l.place), array_agg(l.gate), array_agg(l.gate_row), array_agg(l.until_us),
           bool_or(l.closed_until_ms > 0)
      into gate_jobs, gate_places, gates, gate_rows, used_until_us, is_closed
      from (select p.job, l.place, g.gate, g.ctid as gate_row, g.until_us, g.closed_until_ms
              from unnest(picked, job_places, job_routes, tenants) with ordinality as p (seq, place, route, tenant, job)
              join unnest(limit_routes, limit_numbers, key_sources) with ordinality
                   as l (route, number, key_source, place) on l.route = p.route
              join holdfast.gate g on g.flow_limit = l.number
               and g.key = case l.key_source when 'all' then 'all' when 'tenant' then p.tenant
                                when 'given' then (select i.key from holdfast.limit_key i where i.seq = p.seq)
                                else (select case l.key_source when 'affinity' then j.affinity
                                                  else j.tags::json ->> substr(l.key_source, 5) end
                                        from holdfast.job j where j.ctid = p.place and j.seq + 0 = p.seq) end
               for update of g skip locked) l;
    -- With two limits of one kind, the gate that was found may be that of the other one.
    has_one_each := gate_jobs = array(select generate_series(1::bigint, cardinality(picked)))
                    and cardinality(limit_routes) = (select count(distinct l.route) from unnest(limit_routes) as l (route));
    if has_one_each is not true then
        select array_agg(w.job), array_agg(w.place), array_agg(w.number), array_agg(w.key), count(w.key)
          into jobs, places, numbers, keys, keys_given
          from (select p.job, l.place, l.number,
                       case l.key_source when 'all' then 'all' when 'tenant' then p.tenant
                            when 'given' then (select i.key from holdfast.limit_key i where i.seq = p.seq)
                            else (select case l.key_source when 'affinity' then j.affinity
                                              else j.tags::json ->> substr(l.key_source, 5) end
                                    from holdfast.job j where j.ctid = p.place and j.seq + 0 = p.seq) end as key
                  from unnest(picked, job_places, job_routes, tenants) with ordinality as p (seq, place, route, tenant, job)
                  left join unnest(limit_routes, limit_numbers, key_sources) with ordinality
                            as l (route, number, key_source, place) on l.route = p.route) w;
        if coalesce(cardinality(gates), 0) < keys_given then
            insert into holdfast.gate (flow_limit, key)
            select distinct k.number, k.key from unnest(numbers, keys) as k (number, key)
             where k.key is not null and not exists (select 1 from holdfast.gate g where g.flow_limit = k.number and g.key = k.key)
             order by 1, 2
            on conflict (flow_limit, key) do nothing;
            perform holdfast.lock_gates_1(
                array(select distinct g.gate from unnest(numbers, keys) as k (number, key)
                        join holdfast.gate g on g.flow_limit = k.number and g.key = k.key), 200);
            select array_agg(l.job), array_agg(l.place), array_agg(l.gate), array_agg(l.gate_row), array_agg(l.until_us),
                   bool_or(l.closed_until_ms > 0)
              into gate_jobs, gate_places, gates, gate_rows, used_until_us, is_closed
              from (select k.job, k.place, g.gate, g.ctid as gate_row, g.until_us, g.closed_until_ms
                      from unnest(jobs, places, numbers, keys) as k (job, place, number, key)
                      join holdfast.gate g on g.flow_limit = k.number and g.key = k.key
                       for update of g skip locked) l;
            if coalesce(cardinality(gates), 0) < keys_given then
                return null;
            end if;
        end if;
    end if;
    if is_closed then
        return null;
    elsif cardinality(array_remove(offering, null)) > 0 then
        if exists (select 1 from unnest(offering) with ordinality as o (gate, job)
                    where o.gate is not null
                      and not exists (select 1 from unnest(gate_jobs, gates) as g (job, gate)
                                       where g.job = o.job and g.gate = o.gate)) then
            return null;
        end if;
    end if;
    if cardinality(array_remove(start_costs_us, null)) > 0 then
        select bool_or(s.until_us > now_ms * 1000 + burst_costs_us[s.place]), array_agg(s.gate_row), array_agg(s.until_us)
          into is_full, rate_rows, rates_until_us
          from (select g.gate_row, min(g.place) as place,
                       greatest(g.until_us, now_ms * 1000) + count(*) * start_costs_us[min(g.place)] as until_us
                  from unnest(gate_places, gate_rows, used_until_us) as g (place, gate_row, until_us)
                 where start_costs_us[g.place] is not null
                 group by g.gate_row, g.until_us) s;
        if is_full then
            return null;
        end if;
    end if;
    -- Permits are counted by statements of their own, which see what those have committed who held the locks before.
    if lowest is not null then
        -- First whether all jobs could start at any of the gates, then who is named at each, and only then who runs.
        blocks := array(select g.gate >> 3 from unnest(gates) as g (gate));
        if (cardinality(picked) > lowest
            or exists (select 1 from holdfast.permit p where p.block = any (blocks)
                        group by p.block having sum(cardinality(p.seqs)) > lowest - cardinality(picked)))
           and exists (select 1 from (select n.gate, min(n.place) as place, count(n.place) as starts, count(*) as named
                                        from (select g.gate, g.place from unnest(gates, gate_places) as g (gate, place)
                                               where concurrencies[g.place] is not null
                                              union all
                                              select u.gate, null from holdfast.permit p
                                               cross join lateral unnest(p.gates) as u (gate)
                                               where p.block = any (blocks)) n
                                       group by n.gate) s
                        where case when concurrencies[s.place] < s.named
                                   then concurrencies[s.place] < s.starts + holdfast.gate_running_1(s.gate) end) then
            return null;
        end if;
    end if;
    if rate_rows is not null then
        update holdfast.gate g set until_us = s.until_us from unnest(rate_rows, rates_until_us) as s (gate_row, until_us)
         where g.ctid = s.gate_row;
    end if;
    if has_one_each and array_position(concurrencies, null) is null then
        return gates;
    elsif cardinality(array_remove(concurrencies, null)) = 0 then
        return array_fill(null::bigint, array[cardinality(picked)]);
    end if;
    -- Of the gates of a job at most one has a limit on how many run.
    select array_agg(c.gate order by c.job) into counting
      from (select f.job, max(f.gate) as gate
              from (select g.job, g.gate from unnest(gate_jobs, gate_places, gates) as g (job, place, gate)
                     where concurrencies[g.place] is not null
                    union all
                    select generate_series(1, cardinality(picked)), null) f
             group by f.job) c;
    return counting;
end
$$;

-- Read all ready jobs of routes, if those that were enqueued have at least this number, and those that became ready later
-- are due at this time or after. New jobs of other routes are read too: if there are very many, the result is crowded.
create function holdfast.ready_since_1(
    routes integer[], floor_seq bigint, floor_due bigint, rows_max integer, out is_crowded boolean, out seqs bigint[],
    out places tid[], out priorities integer[], out fair_keys text[], out dues bigint[], out agains smallint[]
) language plpgsql stable as
$$
begin
    with recent as materialized (
        select j.seq, j.ctid as place, j.route, j.priority, j.fair_key, j.due_at_ms, j.again from holdfast.ready_job j
         where j.seq >= floor_seq
         order by j.seq limit rows_max
    ),
    others as materialized (
        select j.* from unnest(routes) as r (route)
         cross join lateral (
            select j.seq, j.ctid as place, j.priority, j.fair_key, j.due_at_ms, j.again from holdfast.ready_job j
             where j.again = 1 and j.route = r.route and j.due_at_ms >= floor_due
             order by j.due_at_ms, j.seq limit rows_max
         ) j
    ),
    found as (
        select n.seq, n.place, n.priority, n.fair_key, n.due_at_ms, n.again from recent n
         where n.again = 0 and n.route = any (routes)
        union all
        select o.* from others o
    )
    select (select count(*) from recent) >= rows_max or (select count(*) from others) >= rows_max,
           array_agg(f.seq), array_agg(f.place), array_agg(f.priority), array_agg(f.fair_key), array_agg(f.due_at_ms),
           array_agg(f.again)
      into is_crowded, seqs, places, priorities, fair_keys, dues, agains
      from found f;
end
$$;

-- A job as a claim returns it. The columns that most jobs have empty or alike are one: null, or a JSON array of them.
create type holdfast.claimed_job as (
    seq bigint, id text, route integer, tenant text, priority integer, payload text, due_at_ms bigint, epoch integer,
    max_attempts integer, claim_index integer, unacknowledged smallint, few text
);

-- Claim ready jobs, level by level, tenants in turn, and return them, then a header. Its id is `refused` if nothing was
-- written because the full form has to do it. Its last column has the time; `all` if all ready jobs of the routes were
-- seen, then the number of the first new one that is left, or 0, and the first due time of the others; the fair_key of
-- the first level, if it has only one and scan positions were used; the number of this transaction, if it has one.
-- Locked jobs are skipped; if there are no others, the full form looks further, unless all were seen.
create function holdfast.claim_1(
    clock_ms bigint, lease_clock_ms bigint, routes integer[], jobs_max integer, by_worker text, by_incarnation text,
    by_token text, lease_length bigint, acknowledged integer, scope_prefix text, mark_priorities integer[],
    mark_keys text[], mark_dues bigint[], mark_seqs bigint[], floor_seq bigint, floor_due bigint, floor_backdated bigint,
    wall_floor bigint, lease_floor bigint,
    limit_routes integer[] default '{}', limit_numbers bigint[] default '{}', key_sources text[] default '{}',
    concurrencies integer[] default '{}', start_costs_us bigint[] default '{}', burst_costs_us bigint[] default '{}'
) returns setof holdfast.claimed_job language plpgsql volatile
    set lock_timeout = '10s' set enable_bitmapscan = off set enable_seqscan = off set enable_hashjoin = off
    set enable_mergejoin = off set jit = off set plan_cache_mode = force_generic_plan as
$$
#variable_conflict use_column
declare
    now_ms constant bigint := coalesce(clock_ms, holdfast.clock_ms());
    lease_now constant bigint := coalesce(lease_clock_ms, now_ms);
    marked boolean := cardinality(array_remove(mark_priorities, null)) > 0;
    -- All ready jobs, if they were read from the floor on; those that were chosen, and those that were leased.
    since record;
    since_looked boolean := false;
    looked boolean := false;
    considered bigint[] := '{}';
    all_picked bigint[] := '{}';
    due_looked boolean := false;
    rows_left bigint;
    header holdfast.claimed_job;
    extent text;
    first_new bigint := 0;
    first_again bigint;
    first_key text;
    level_priority integer;
    level_routes integer[];
    only_key text;
    many_keys boolean;
    mark integer;
    has_mark boolean;
    low_due bigint;
    low_seq bigint;
    last_key text;
    served_key text;
    level_scope text;
    key_routes integer[];
    keys text[];
    room integer;
    chosen bigint[];
    picked bigint[];
    job_places tid[];
    chosen_places tid[];
    places tid[];
    -- Of those that were picked, if they may need room at gates.
    job_routes integer[];
    tenants text[];
    offering bigint[];
    is_taken boolean;
    leased integer;
    gates bigint[] := '{}';
    gated constant boolean := cardinality(limit_routes) > 0;
    recorded boolean;
    taken integer := 0;
begin
    header.id := 'claimed';
    if current_setting('holdfast_plain.form', true) = 'off' then
        header.id := 'refused';
        header.few := json_build_array(now_ms, null, 0, null, null, null);
        return next header;
        return;
    end if;
    if floor_backdated is distinct from coalesce(pg_sequence_last_value('holdfast.backdated'::regclass), 0) then
        floor_due := -1;
    end if;
    while taken < jobs_max loop
        room := jobs_max - taken;
        chosen := null;
        picked := null;
        if floor_seq is not null and not marked and not since_looked then
            select * into since from holdfast.ready_since_1(routes, floor_seq, floor_due, 2 * jobs_max + 500);
            since_looked := true;
            looked := not since.is_crowded;
            extent := case when since.is_crowded then 'crowded' end;
        end if;
        if looked then
            level_priority := (select max(c.priority) from unnest(since.seqs, since.priorities) as c (seq, priority)
                                where c.seq not in (select d.seq from unnest(considered) as d (seq)));
            many_keys := true;
        else
            select t.priority, array_agg(t.route), min(t.first_key), min(t.first_key) <> max(t.last_key)
              into level_priority, level_routes, only_key, many_keys
              from holdfast.ready_tops_1(routes, mark_priorities, mark_keys, mark_dues, mark_seqs) t
             group by t.priority
             order by t.priority desc
             limit 1;
        end if;
        if level_priority is not null then
            level_scope := scope_prefix || level_priority;
            last_key := (select f.fair_key from holdfast.fair_key f where f.scope = level_scope);
            if taken = 0 and not looked then
                first_key := case when many_keys then null else only_key end;
            end if;
            if looked then
                select array_agg(f.seq), array_agg(f.place) into chosen, chosen_places
                  from (select c.seq, c.place, c.fair_key,
                               last_key is not null and c.fair_key collate "C" <= last_key as is_passed,
                               row_number() over (partition by c.fair_key order by c.due_at_ms, c.seq) as turn
                          from unnest(since.seqs, since.places, since.priorities, since.fair_keys, since.dues)
                               as c (seq, place, priority, fair_key, due_at_ms)
                         where c.priority = level_priority
                           and c.seq not in (select d.seq from unnest(considered) as d (seq))
                         order by turn, is_passed, c.fair_key collate "C"
                         limit room + 32) f; -- others may have locked the first
                considered := considered || chosen;
            elsif cardinality(level_routes) = 1 and not many_keys then
                mark := array_position(routes, level_routes[1]);
                has_mark := mark_priorities[mark] = level_priority and mark_keys[mark] = only_key;
                low_due := case when has_mark then mark_dues[mark] end;
                low_seq := case when has_mark then mark_seqs[mark] end;
                select array_agg(s.seq), array_agg(s.job_place), array_agg(s.place), bool_or(s.record_all = 1),
                       array_agg(s.route) filter (where gated), array_agg(s.tenant) filter (where gated),
                       array_agg(s.gate) filter (where gated)
                  into picked, job_places, places, recorded, job_routes, tenants, offering
                  from (select j.*, r.place
                          -- Subqueries, as a join could read all jobs if the statistics say that there is none.
                          from (select r.seq, r.ctid as place from holdfast.ready_job r
                                 where r.route = level_routes[1] and r.priority = level_priority
                                   and r.fair_key = only_key
                                   and (r.due_at_ms, r.seq) >= (coalesce(low_due, -1), coalesce(low_seq, -1))
                                   -- Not those that an open transaction deletes: their jobs are locked.
                                   and age(r.xmax) > (select age(pg_snapshot_xmax(pg_current_snapshot())::xid))
                                   and r.xmax <> all (array(
                                        select o.number::xid from pg_snapshot_xip(pg_current_snapshot()) as o (number)))
                                 order by r.due_at_ms, r.seq offset 0) r
                         cross join lateral (
                            select j.seq, j.ctid as job_place, j.record_all, j.route, j.tenant, j.gate from holdfast.job j
                             where j.seq = r.seq and j.state = 'ready' and j.priority = level_priority
                               and (j.deadline_at_ms is null or j.deadline_at_ms > now_ms)
                               for update skip locked
                         ) j
                         limit room) s;
                chosen := picked;
            else
                if many_keys then
                    select array_agg(k.route), array_agg(k.fair_key) into key_routes, keys
                      from holdfast.ready_fair_keys_1(level_routes, level_priority, last_key, room) k;
                else
                    key_routes := level_routes;
                    keys := array_fill(only_key, array[cardinality(level_routes)]);
                end if;
                -- The first jobs of each fair_key in turn; those after the window are left for the next round.
                with spread as materialized (
                    select ceil(room::numeric / count(distinct k.fair_key))::integer as jobs
                      from unnest(keys) as k (fair_key)
                ),
                heads as (
                    select h.seq, h.place, k.fair_key collate "C" as fair_key,
                           row_number() over (partition by k.fair_key order by h.due_at_ms, h.seq) as turn
                      from unnest(key_routes, keys) as k (route, fair_key)
                      left join unnest(routes, mark_priorities, mark_keys, mark_dues, mark_seqs)
                                as m (route, priority, fair_key, due_at_ms, seq)
                             on m.route = k.route and m.priority = level_priority and m.fair_key = k.fair_key
                     cross join lateral (
                        select j.seq, j.ctid as place, j.due_at_ms from holdfast.ready_job j
                         where j.route = k.route and j.priority = level_priority
                           and j.fair_key = k.fair_key
                           and (j.due_at_ms, j.seq) >= (coalesce(m.due_at_ms, -1), coalesce(m.seq, -1))
                         order by j.due_at_ms, j.seq limit (select jobs from spread)
                     ) h
                ),
                first as (
                    select h.seq, h.place, h.turn, h.fair_key from heads h
                     where h.turn <= (select jobs from spread)
                     order by h.turn, last_key is not null and h.fair_key <= last_key, h.fair_key
                     limit room
                )
                select array_agg(f.seq order by f.turn, last_key is not null and f.fair_key <= last_key, f.fair_key),
                       array_agg(f.place order by f.turn, last_key is not null and f.fair_key <= last_key, f.fair_key)
                  into chosen, chosen_places from first f;
            end if;
            if looked or many_keys or cardinality(level_routes) > 1 then
                select array_agg(l.seq), array_agg(l.job_place), array_agg(l.place), bool_or(l.record_all = 1),
                       array_agg(l.route) filter (where gated), array_agg(l.tenant) filter (where gated),
                       array_agg(l.gate) filter (where gated)
                  into picked, job_places, places, recorded, job_routes, tenants, offering
                  from (select j.*, c.place
                          from unnest(chosen, chosen_places) as c (seq, place)
                         cross join lateral (
                            select j.seq, j.ctid as job_place, j.record_all, j.route, j.tenant, j.gate from holdfast.job j
                             where j.seq = c.seq and j.state = 'ready' and j.priority = level_priority
                               and (j.deadline_at_ms is null or j.deadline_at_ms > now_ms)
                               for update skip locked
                         ) j
                         limit room) l;
            end if;
        end if;
        if marked and (picked is null or cardinality(picked) < room) then
            -- Fewer than requested: look again, from where no job can be any more.
            marked := false;
            mark_priorities := array_fill(null::integer, array[cardinality(routes)]);
            continue;
        end if;
        if taken = 0 and not due_looked and (picked is null or cardinality(picked) < room) then
            due_looked := true;
            if not looked and picked is null and level_priority is not null
               or holdfast.is_due_1(wall_floor, -1, now_ms, lease_floor, lease_now) then
                header.id := 'refused';
                exit;
            end if;
        end if;
        exit when level_priority is null or picked is null and not looked;
        continue when picked is null;
        if gated then
            gates := holdfast.pass_gates_1(picked, job_places, job_routes, tenants, offering, now_ms, limit_routes,
                                           limit_numbers, key_sources, concurrencies, start_costs_us, burst_costs_us);
            if gates is null and taken > 0 then
                raise exception 'a job has no room' using errcode = 'HF002';
            elsif gates is null then
                header.id := 'refused';
                exit;
            end if;
        end if;
        -- An assignment takes less time than a statement.
        is_taken := holdfast.take_1(by_worker, by_token, lease_now + lease_length, picked, gates, places);
        -- The rows are locked, so they are where they were found.
        return query
        update holdfast.job j
           set state = 'running', epoch = j.epoch + 1, attempt = j.attempt + 1,
               event_count = j.event_count + j.record_all, claim_index = taken + p.ordinal::integer - 1,
               gate = case when gated then p.gate else j.gate end, worker = by_worker, incarnation = by_incarnation, lease_token = by_token,
               lease_until_ms = lease_now + lease_length, started_at_ms = now_ms,
               outcome = null, settle_digest = null, phase = null, percent = null,
               unacknowledged = case when taken + p.ordinal - 1 < acknowledged then 0 else j.unacknowledged + 1 end
          from unnest(picked, gates, job_places) with ordinality as p (seq, gate, place, ordinal)
         where j.ctid = p.place and j.seq + 0 = p.seq
        returning j.seq, j.id, j.route, j.tenant, j.priority, j.payload, j.due_at_ms, j.epoch, j.max_attempts, j.claim_index,
                  j.unacknowledged,
                  case when num_nonnulls(j.affinity, j.result, j.deadline_at_ms, j.finished_at_ms, j.backoff, j.deferred_since_ms,
                                         j.failure_class, j.failure_reason, j.failure_message, j.failure_traceback,
                                         j.dedupe_key, j.dedupe_kind, j.predecessor, j.digest, j.parent, j.root) = 0
                            and j.cancel_requested + j.suspect + j.deferrals + j.releases + j.record_all + j.event_count = 0
                            and j.enqueued_at_ms = j.due_at_ms and j.attempt = j.epoch and j.fair_key = j.tenant
                            and j.headers = '{}' and j.tags = '{}' then null
                       else json_build_array(
                           j.fair_key, j.affinity, j.headers, j.tags, j.result, j.enqueued_at_ms, j.deadline_at_ms,
                           j.finished_at_ms, j.attempt, j.backoff, j.cancel_requested, j.suspect, j.deferrals,
                           j.deferred_since_ms, j.releases, j.failure_class, j.failure_reason, j.failure_message,
                           j.failure_traceback, j.dedupe_key, j.dedupe_kind, j.predecessor, j.digest, j.parent, j.root,
                           j.record_all, j.event_count)::text end;
        get diagnostics leased = row_count;
        assert leased = cardinality(picked), 'a locked row has moved';
        if recorded then
            insert into holdfast.event (
                name, at_ms, job_ids, number, route, tenant, tags, state, attempt, epoch, worker, failure_class, failure_reason
            )
            select 'claimed', now_ms, array[j.id], j.event_count, j.route, j.tenant, j.tags, j.state, j.attempt, j.epoch,
                   j.worker, j.failure_class, j.failure_reason
              from unnest(picked) with ordinality as p (seq, ordinal)
              join holdfast.job j on j.seq = p.seq and j.record_all = 1
             order by p.ordinal;
        end if;
        if many_keys then
            served_key := (select j.fair_key from holdfast.job j where j.seq = picked[cardinality(picked)]);
        else
            served_key := only_key;
        end if;
        if last_key is distinct from served_key then
            perform holdfast.serve_fair_key_1(level_scope, served_key, now_ms, last_key is null);
        end if;
        taken := taken + cardinality(picked);
        all_picked := all_picked || picked;
        -- Others hold the rest of the chosen jobs.
        exit when not looked and cardinality(picked) < cardinality(chosen);
    end loop;
    if header.id = 'claimed' and looked then
        extent := 'all';
        select coalesce(min(c.seq) filter (where c.again = 0), 0), min(c.due_at_ms) filter (where c.again = 1)
          into first_new, first_again
          from unnest(since.seqs, since.dues, since.agains) as c (seq, due_at_ms, again)
         where c.seq not in (select p.seq from unnest(all_picked) as p (seq));
    elsif header.id = 'claimed' and taken < jobs_max then
        -- What is left is locked or was enqueued just now.
        select count(*), coalesce(min(l.seq) filter (where l.again = 0), 0), min(l.due_at_ms) filter (where l.again = 1)
          into rows_left, first_new, first_again
          from (select j.seq, j.again, j.due_at_ms from unnest(routes) as r (route)
                  join holdfast.ready_job j on j.route = r.route
                 limit 5000) l;
        extent := case when rows_left < 5000 then 'all' end;
    end if;
    header.few := json_build_array(now_ms, extent, first_new, first_again, first_key,
                                   pg_current_xact_id_if_assigned()::text::bigint);
    return next header;
end
$$;

-- As claim_1, for jobs with limits: if one of a later level has no room, what was claimed before it is undone.
create function holdfast.claim_gated_1(
    clock_ms bigint, lease_clock_ms bigint, routes integer[], jobs_max integer, by_worker text, by_incarnation text,
    by_token text, lease_length bigint, acknowledged integer, scope_prefix text, mark_priorities integer[],
    mark_keys text[], mark_dues bigint[], mark_seqs bigint[], floor_seq bigint, floor_due bigint, floor_backdated bigint,
    wall_floor bigint, lease_floor bigint,
    limit_routes integer[], limit_numbers bigint[], key_sources text[], concurrencies integer[], start_costs_us bigint[],
    burst_costs_us bigint[]
) returns setof holdfast.claimed_job language plpgsql volatile as
$$
declare
    header holdfast.claimed_job;
begin
    return query
    select * from holdfast.claim_1(
        clock_ms, lease_clock_ms, routes, jobs_max, by_worker, by_incarnation, by_token, lease_length, acknowledged,
        scope_prefix, mark_priorities, mark_keys, mark_dues, mark_seqs, floor_seq, floor_due, floor_backdated,
        wall_floor, lease_floor, limit_routes, limit_numbers, key_sources, concurrencies, start_costs_us, burst_costs_us);
exception when sqlstate 'HF002' then
    header.id := 'refused';
    header.few := json_build_array(coalesce(clock_ms, holdfast.clock_ms()), null, 0, null, null, null);
    return next header;
end
$$;

-- Hold the routing table and return whether it has the caller's version; if not, plain forms after it do nothing.
create function holdfast.plain_hold_1(known_version text) returns boolean language plpgsql volatile
    set lock_timeout = '10s' as
$$
begin
    -- As `routing_version` does it, without the calls.
    perform pg_advisory_xact_lock_shared('holdfast.meta'::regclass::oid::integer, 1);
    if (select value from holdfast.meta where name = 'routing_version') = known_version then
        return true;
    end if;
    perform set_config('holdfast_plain.form', 'off', true);
    return false;
end
$$;

-- Lease the next entries of the session with the oldest head of the next fair_key, and return a header and them. The state
-- of the header is `claimed`, `none` if no session is ready, or `refused` if the full form has to look: nothing was
-- written. Its tenant is that of the session, its id the name, its number the fence, its entry the id of the claim. The
-- head is the first in line; what follows it is read only if it may be joined.
create function holdfast.session_claim_1(
    clock_ms bigint, lease_clock_ms bigint, routes integer[], limits integer[], entry_types text[], of_scope text,
    by_worker text, by_incarnation text, by_token text, lease_length bigint, acknowledged boolean
) returns setof holdfast.job language plpgsql volatile
    set lock_timeout = '10s' set enable_bitmapscan = off set enable_seqscan = off set enable_hashjoin = off
    set enable_mergejoin = off set jit = off set plan_cache_mode = force_generic_plan as
$$
#variable_conflict use_column
declare
    now_ms constant bigint := coalesce(clock_ms, holdfast.clock_ms());
    lease_now constant bigint := coalesce(lease_clock_ms, now_ms);
    header holdfast.job;
    last_key text;
    next_key text;
    candidate bigint;
    candidates bigint[];
    chosen holdfast.session;
    head record;
    entries_max integer;
    in_line record;
    head_join text;
    picked bigint[];
    locked integer;
    recorded boolean;
begin
    header.state := 'refused';
    if current_setting('holdfast_plain.form', true) = 'off' or exists (
        select 1 from holdfast.session s where s.lease_until_ms is not null and s.lease_until_ms <= lease_now
    ) then
        return next header;
        return;
    end if;
    last_key := (select f.fair_key from holdfast.fair_key f where f.scope = of_scope);
    select k.fair_key, k.number into next_key, candidate
      from unnest(routes) as r (route)
     cross join unnest(entry_types) as t (entry_type)
     cross join lateral (
        (select s.head_fair_key as fair_key, s.head_seq, s.number from holdfast.session s
          where s.head_seq is not null and s.head_route = r.route and s.head_entry_type = t.entry_type
            and s.head_fair_key > last_key
          order by s.head_fair_key, s.head_seq limit 1)
        union all
        (select s.head_fair_key, s.head_seq, s.number from holdfast.session s
          where s.head_seq is not null and s.head_route = r.route and s.head_entry_type = t.entry_type
          order by s.head_fair_key, s.head_seq limit 1)
     ) k
     order by last_key is not null and k.fair_key <= last_key, k.fair_key, k.head_seq limit 1;
    if next_key is null then
        header.state := 'none';
        return next header;
        return;
    end if;
    select * into chosen from holdfast.session s
     where s.number = candidate and coalesce(s.head_seq, -1) >= 0
       for update skip locked;
    if not found then
        -- Others have locked it, and perhaps some of the next ones.
        candidates := array(
            select h.number
              from unnest(routes) as r (route)
             cross join unnest(entry_types) as t (entry_type)
             cross join lateral (
                select s.head_seq, s.number from holdfast.session s
                 where s.head_seq is not null and s.head_route = r.route and s.head_entry_type = t.entry_type
                   and s.head_fair_key = next_key
                 order by s.head_seq limit 16
             ) h
             order by h.head_seq limit 16
        );
        select * into chosen from holdfast.session s
         where s.number = any (candidates) and coalesce(s.head_seq, -1) >= 0
         order by array_position(candidates, s.number)
         limit 1
           for update skip locked;
    end if;
    -- The head may have changed since it was found.
    if not found or chosen.head_fair_key <> next_key or chosen.head_route <> all (routes)
       or chosen.head_entry_type <> all (entry_types) then
        return next header;
        return;
    end if;
    select j.id, j.record_all, j.entry::json ->> 2 as joins into head
      from holdfast.job j
     where j.seq = chosen.head_seq and j.state = 'ready' and (j.deadline_at_ms is null or j.deadline_at_ms > now_ms)
       for update skip locked;
    if not found then
        return next header;
        return;
    end if;
    picked := array[chosen.head_seq];
    recorded := head.record_all = 1;
    entries_max := limits[array_position(routes, chosen.head_route)];
    if entries_max > 1 and head.joins <> 'false' then
        picked := '{}';
        for in_line in
            select o.seq, o.state, o.route, (j.entry::json -> 2)::text || (j.entry::json -> 3)::text as joins
              from holdfast.open_job o
              join holdfast.job j on j.seq = o.seq
             where o.session = chosen.number and o.session is not null
               and (o.state = 'ready' or o.state = 'parked' or (o.state = 'scheduled' and o.epoch > 0))
             order by o.enqueue_seq
             limit entries_max
        loop
            if head_join is null then
                head_join := in_line.joins;
                exit when in_line.seq <> chosen.head_seq;
            elsif in_line.state = 'ready' and in_line.joins <> head_join then
                exit;
            elsif in_line.state <> 'ready' or in_line.route <> chosen.head_route then
                picked := '{}';
                exit;
            end if;
            picked := picked || in_line.seq;
        end loop;
        select count(*), bool_or(l.record_all = 1) into locked, recorded
          from (select j.record_all from holdfast.job j
                 where j.seq = any (picked) and j.state = 'ready'
                   and (j.deadline_at_ms is null or j.deadline_at_ms > now_ms)
                 order by j.seq
                   for update of j skip locked) l;
        if locked = 0 or locked < cardinality(picked) then
            return next header;
            return;
        end if;
    end if;
    -- As `take_1` does it for entries, which are ready and in both tables.
    delete from holdfast.ready_job r where r.seq = any (picked);
    update holdfast.open_job o set state = 'running', epoch = o.epoch + 1 where o.seq = any (picked);
    insert into holdfast.lease as l (worker, token, until_ms, seqs)
    values (by_worker, by_token, lease_now + lease_length, picked)
    on conflict (token, worker) do update
       set until_ms = least(l.until_ms, excluded.until_ms),
           seqs = array(select distinct u.seq from unnest(l.seqs || excluded.seqs) as u (seq));
    update holdfast.session s
       set fence = s.fence + 1,
           claim_id = 'claim-' || left(encode(sha256(convert_to(concat_ws(chr(10),
               s.tenant, s.name, head.id, s.fence + 1
           ), 'UTF8')), 'hex'), 32),
           head_route = null, head_entry_type = null, head_fair_key = null, head_seq = null
     where s.number = chosen.number
    returning 'claimed', s.tenant, s.name, s.fence, s.claim_id
         into header.state, header.tenant, header.id, header.seq, header.entry;
    return next header;
    if last_key is distinct from next_key then
        perform holdfast.serve_fair_key_1(of_scope, next_key, now_ms, last_key is null);
    end if;
    return query
    update holdfast.job j
       set state = 'running', epoch = j.epoch + 1, attempt = j.attempt + 1,
           event_count = j.event_count + j.record_all, claim_index = array_position(picked, j.seq) - 1,
           worker = by_worker, incarnation = by_incarnation, lease_token = by_token,
           lease_until_ms = lease_now + lease_length, started_at_ms = now_ms,
           outcome = null, settle_digest = null, phase = null, percent = null,
           unacknowledged = case when acknowledged then 0 else j.unacknowledged + 1 end
     where j.seq = any (picked)
    returning j.*;
    if recorded then
        insert into holdfast.event (
            name, at_ms, job_ids, number, route, tenant, tags, state, attempt, epoch, worker, failure_class, failure_reason
        )
        select 'claimed', now_ms, array[j.id], j.event_count, j.route, j.tenant, j.tags, j.state, j.attempt, j.epoch,
               j.worker, j.failure_class, j.failure_reason
          from unnest(picked) with ordinality as p (seq, ordinal)
          join holdfast.job j on j.seq = p.seq and j.record_all = 1
         order by p.ordinal;
    end if;
end
$$;

-- Write the head of a session in which a turn has ended, and return whether entries are in line and the lane of the
-- head. If the first in line is not ready or the session has an owner, roll back: the full form decides. Most turns leave
-- no entry, so what is known of the first in line is read only if there is one.
create function holdfast.session_head_1(of_session bigint, out is_waiting boolean, out head_lane text)
language plpgsql volatile
    set lock_timeout = '10s' set enable_bitmapscan = off set enable_seqscan = off set enable_hashjoin = off
    set enable_mergejoin = off set jit = off set plan_cache_mode = force_generic_plan as
$$
declare
    known record;
    first record;
    type_of_head text;
    key text;
begin
    if current_setting('holdfast_plain.form', true) = 'off' then
        return;
    end if;
    select s.lease_until_ms, s.head_seq, s.tenant into known from holdfast.session s where s.number = of_session for update;
    select o.seq, o.state, o.route into first
      from holdfast.open_job o
     where o.session = of_session and o.session is not null
       and (o.state = 'ready' or o.state = 'parked' or (o.state = 'scheduled' and o.epoch > 0))
     order by o.enqueue_seq limit 1;
    is_waiting := found;
    if is_waiting then
        is_waiting := not exists (
            select 1 from holdfast.open_job o
             where o.session = of_session and o.session is not null and o.state = 'running'
        );
    end if;
    if known.lease_until_ms is not null or (is_waiting and first.state <> 'ready') then
        raise exception 'the head is not plain' using errcode = 'HF001';
    end if;
    if is_waiting then
        select j.entry::json ->> 1, r.lane, case when l.lane is null then known.tenant else '' end
          into type_of_head, head_lane, key
          from holdfast.job j
         cross join lateral holdfast.route_of(first.route) r
          left join holdfast.lane l on l.lane = r.lane and l.lane_order = 'strict'
         where j.seq = first.seq;
    end if;
    if is_waiting or known.head_seq is not null then
        update holdfast.session s
           set head_route = case when is_waiting then first.route end, head_entry_type = type_of_head,
               head_fair_key = key, head_seq = case when is_waiting then first.seq end
         where s.number = of_session;
    end if;
end
$$;

-- Store the fair_key served last in a scope, unless another transaction is writing it; it is only a hint. A new scope
-- displaces the one that was used least recently.
create function holdfast.serve_fair_key_1(of_scope text, served text, now_ms bigint, is_new boolean) returns void
language plpgsql volatile as
$$
begin
    perform 1 from holdfast.fair_key f where f.scope = of_scope for update skip locked;
    if found then
        update holdfast.fair_key f set fair_key = served, used_at_ms = now_ms where f.scope = of_scope;
    elsif is_new then
        insert into holdfast.fair_key (scope, fair_key, used_at_ms) values (of_scope, served, now_ms)
        on conflict (scope) do nothing;
        delete from holdfast.fair_key
         where scope in (select scope from holdfast.fair_key
                          order by used_at_ms desc offset 1000
                            for update skip locked);
    end if;
end
$$;

-- Delete finished jobs, and the rows of lists that list no job any more, from a finish time on up to the newest of them.
create function holdfast.delete_jobs_1(old_seqs bigint[], finished_after bigint) returns void
language plpgsql volatile as
$$
declare
    newest record;
begin
    for newest in
        with deleted as (delete from holdfast.job j where j.seq = any (old_seqs) returning j.state, j.finished_at_ms)
        select d.state, max(d.finished_at_ms) as finished_at_ms from deleted d group by d.state
    loop
        delete from holdfast.ended e
         where e.state = newest.state and e.finished_at_ms >= finished_after
           and e.finished_at_ms <= newest.finished_at_ms
           and not exists (select 1 from unnest(e.seqs, e.event_counts) as u (seq, event_count)
                             join holdfast.job j on j.seq = u.seq
                            where j.state = e.state and j.finished_at_ms = e.finished_at_ms
                              and j.event_count = u.event_count);
    end loop;
end
$$;

-- Find and lock some jobs of one finished state that finished before a time, earliest first, after one of them. Left out
-- are jobs on which an unfinished one depends, or a group that has not ended or has an unfinished callback: subqueries,
-- because a call of a function for each job would take longer than the rest. The rows of the list are read in order, up
-- to the last job that is returned.
create function holdfast.jobs_to_delete_1(
    of_state text, finished_after bigint, after bigint, before bigint, maximum integer
) returns table (finished_at_ms bigint, seq bigint) language plpgsql volatile
    set enable_sort = off set enable_seqscan = off set enable_bitmapscan = off
    set enable_hashjoin = off set enable_mergejoin = off set jit = off as
$$
#variable_conflict use_column
declare
    locked bigint[];
begin
    locked := array(
        select j.seq from holdfast.ended e
         cross join lateral unnest(e.seqs, e.event_counts) as u (seq, event_count)
          join holdfast.job j on j.seq = u.seq
         where e.state = of_state and e.finished_at_ms < before and e.finished_at_ms >= finished_after
           and (e.finished_at_ms, u.seq) > (finished_after, after)
           and j.state = of_state and j.finished_at_ms = e.finished_at_ms and j.event_count = u.event_count
           and (select 1 from holdfast.edge d
                 where d.parent = j.seq
                   and case when d.child > 0
                            then (select c.finished_at_ms is null from holdfast.job c where c.seq = d.child)
                            else (select g.ended_at_ms is null
                                         or (select 1 from holdfast.edge f
                                              where f.parent = -g.number
                                                and (select c.finished_at_ms is null from holdfast.job c where c.seq = f.child)
                                              limit 1) is not null
                                    from holdfast.job_group g where g.number = -d.child) end
                 limit 1) is null
         order by e.finished_at_ms, u.seq
         limit maximum
           for update of j skip locked);
    -- Again, now that none can be added: a job that depends on one of them may have been committed since. Not as a join,
    -- which could go through all of them for each.
    return query
    select j.finished_at_ms, j.seq from holdfast.job j
     where j.seq = any (locked)
       and (select 1 from holdfast.edge d
             where d.parent = j.seq
               and case when d.child > 0
                        then (select c.finished_at_ms is null from holdfast.job c where c.seq = d.child)
                        else (select g.ended_at_ms is null
                                     or (select 1 from holdfast.edge f
                                          where f.parent = -g.number
                                            and (select c.finished_at_ms is null from holdfast.job c where c.seq = f.child)
                                          limit 1) is not null
                                from holdfast.job_group g where g.number = -d.child) end
             limit 1) is null
     order by j.finished_at_ms, j.seq;
end
$$;

-- The numbers and tenants of jobs by id, for dependencies. Finished ones are locked first, so that retention does not
-- delete them before it sees what depends on them; the others are not, as they may be ending.
create function holdfast.jobs_named_1(of_ids text[]) returns table (id text, seq bigint, tenant text)
    language plpgsql volatile as
$$
#variable_conflict use_column
begin
    perform 1 from holdfast.job where id = any (of_ids) and finished_at_ms is not null order by seq for key share;
    return query select id, seq, tenant from holdfast.job where id = any (of_ids);
end
$$;

-- List jobs of one finished state by finish time, newest first, with any filter. As above, the rows of the list are read
-- in order, whatever the statistics say, up to the last job that is returned.
create function holdfast.jobs_by_finish_1(
    of_state text, finished_before bigint, before bigint, finished_floor bigint, floor bigint, of_kind text, of_lane text,
    system_lane text, of_tenant text, of_failure_class text, aged_before bigint, maximum integer
) returns setof holdfast.job_row language sql stable
    set enable_sort = off set enable_seqscan = off set enable_bitmapscan = off
    set enable_hashjoin = off set enable_mergejoin = off set jit = off as
$$
select j.* from holdfast.ended e
 cross join lateral unnest(e.seqs, e.event_counts) as u (seq, event_count)
  join holdfast.job_row j on j.seq = u.seq
 where e.state = of_state and e.finished_at_ms <= finished_before and e.finished_at_ms >= finished_floor
   and (e.finished_at_ms, u.seq) < (finished_before, before)
   and (e.finished_at_ms, u.seq) >= (finished_floor, floor)
   and j.state = of_state and j.finished_at_ms = e.finished_at_ms and j.event_count = u.event_count
   and (of_kind is null or j.kind = of_kind)
   and (j.lane = of_lane or (of_lane is null and j.lane <> system_lane))
   and (of_tenant is null or j.tenant = of_tenant)
   and (of_failure_class is null or j.failure_class = of_failure_class)
   and (aged_before is null or e.finished_at_ms < aged_before)
 order by e.finished_at_ms desc, u.seq desc
 limit maximum;
$$;

-- Find the position so many jobs of one finished state below another, by finish time.
create function holdfast.finish_floor_1(of_state text, finished_before bigint, before bigint, examined integer)
returns table (finished_at_ms bigint, seq bigint) language sql stable
    set enable_sort = off set enable_seqscan = off set enable_bitmapscan = off
    set enable_hashjoin = off set enable_mergejoin = off set jit = off as
$$
select e.finished_at_ms, u.seq from holdfast.ended e
 cross join lateral unnest(e.seqs) as u (seq)
 where e.state = of_state and e.finished_at_ms <= finished_before
   and (e.finished_at_ms, u.seq) < (finished_before, before)
 order by e.finished_at_ms desc, u.seq desc
 limit 1 offset examined;
$$;
