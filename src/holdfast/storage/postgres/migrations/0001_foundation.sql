-- The foundation: jobs, their attempts and artifacts, sessions, lanes, routes, fair_keys, workers, events.
-- Names are compared byte by byte, as the domain's order compares them, whatever language the database speaks.

-- The store's clock, read once by each transaction.
create function holdfast.clock_ms() returns bigint language sql volatile as
$$ select (extract(epoch from clock_timestamp()) * 1000)::bigint $$;

-- What every transaction of the code begins with: its settings, for itself alone, and the clock. As a function, because
-- its plans are kept. Statistics may be old or missing; whatever they say, a claim walks along its index and stops. What
-- has to be read as a whole is thought dear then, but is small: nothing is worth being compiled, nor planned each time.
-- A client that says nothing for as long as others wait for a lock has been stopped or cut off: what it holds is let go.
create function holdfast.begin_ms(lock_ms integer) returns bigint language plpgsql volatile as
$$
begin
    perform set_config('lock_timeout', lock_ms::text, true),
            set_config('idle_in_transaction_session_timeout', lock_ms::text, true),
            set_config('enable_bitmapscan', 'off', true),
            set_config('enable_seqscan', 'off', true), set_config('jit', 'off', true),
            set_config('plan_cache_mode', 'force_generic_plan', true);
    return holdfast.clock_ms();
end
$$;

-- Single values: the lowest code version that may use this schema, the routing version, the event horizon, and who
-- this store is, so that a connection to another one is noticed.
create table holdfast.meta (
    name  text collate "C" primary key,
    value text not null
);

insert into holdfast.meta (name, value) values
    ('code_version_min', '0.1.0'),
    ('routing_version', '0'),
    ('event_horizon', '0-0'),
    ('identity', gen_random_uuid()::text);

-- Hold dedupe keys and chosen ids until the transaction ends, each as a number. Every call names its own in order, so that
-- calls with the same ones wait for each other and do not deadlock.
create function holdfast.hold_keys(keys integer[]) returns void language plpgsql volatile as
$$
declare
    held integer;
begin
    foreach held in array keys loop
        perform pg_advisory_xact_lock('holdfast.job_dedupe'::regclass::oid::integer, held);
    end loop;
end
$$;

-- The routing table's version. Whoever decides by it holds the routing table still until its transaction ends. This has to be a
-- function: a plain statement that waits for a lock still sees what there was before it waited.
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

-- Hold the routing table alone, in order to change it. Whoever waits for a lock makes all who come later wait too, so that one
-- transaction left open would hold up everybody: wait for a moment only, let the others pass, and try again until the
-- patience of the transaction is over.
create function holdfast.lock_routing() returns void language plpgsql volatile as
$$
declare
    patience_ms constant integer := (select setting from pg_settings where name = 'lock_timeout');
    tried_until constant timestamptz := clock_timestamp() + patience_ms * interval '1 millisecond';
begin
    loop
        begin
            perform set_config('lock_timeout', least(patience_ms, 100)::text, true);
            perform pg_advisory_xact_lock('holdfast.meta'::regclass::oid::integer, 1);
            perform set_config('lock_timeout', patience_ms::text, true);
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

-- Lanes that somebody configured; any other lane has the defaults.
create table holdfast.lane (
    lane       text collate "C" primary key,
    state      text not null check (state in ('active', 'paused', 'draining')),
    lane_order text not null check (lane_order in ('fair', 'strict')),
    events     text not null check (events in ('terminal', 'all')),
    backoff    text not null check (backoff in ('block', 'skip'))
);

-- Kinds that take no more jobs.
create table holdfast.retired_kind (
    kind          text collate "C" primary key,
    retired_at_ms bigint not null
);

-- Each combination of lane, kind, required capabilities, "names an affinity" and "is an entry of a session", as a small
-- number.
create table holdfast.route (
    route    integer generated always as identity primary key,
    lane     text collate "C" not null,
    kind     text collate "C" not null,
    requires text collate "C" not null,
    placed   smallint not null,
    session  smallint not null,
    unique (lane, kind, requires, placed, session)
);

-- The route of a job, as a function: a locking clause passes by what comes from a function, so that locking jobs never
-- locks the routes they share. The planner puts its text into the query, as if it were joined.
create function holdfast.route_of(number integer)
returns table (kind text, lane text, requires text) language sql stable as
$$ select r.kind, r.lane, r.requires from holdfast.route r where r.route = number $$;

-- Which fair_key was served last in each round of tenants. A hint for fairness, nothing more.
create table holdfast.fair_key (
    scope      text collate "C" primary key,
    fair_key       text collate "C" not null,
    used_at_ms bigint not null
) with (fillfactor = 50);

-- The starts of exclusive workers; the newest holds, the others are refused.
create table holdfast.incarnation (
    worker        text collate "C" not null,
    incarnation   text collate "C" not null,
    started_at_ms bigint not null,
    superseded    smallint not null default 0,
    primary key (worker, incarnation)
);
-- Two starts at the same moment cannot both be the newest.
create unique index incarnation_newest on holdfast.incarnation (worker) where superseded = 0;

-- The workers: who runs, what it takes, and when it last said so. Nothing is decided by it.
create table holdfast.worker (
    worker        text collate "C" not null,
    incarnation   text collate "C" not null,
    host          text not null,
    process       bigint not null,
    version       text not null,
    state         text not null,
    concurrency   integer not null,
    running       integer not null,
    lanes         text not null,
    kinds         text not null,
    capabilities  text not null,
    loaded        text not null,
    switches      integer not null,
    started_at_ms bigint not null,
    beat_at_ms    bigint not null,
    primary key (worker, incarnation)
) with (fillfactor = 50);
create index worker_beat on holdfast.worker (beat_at_ms);

-- Numbers in enqueue order, never given again.
create sequence holdfast.job_seq;

-- Jobs. Rows are updated a few times and then rest, so that pages keep some room and dead rows are cleared early.
create table holdfast.job (
    seq               bigint primary key,
    due_at_ms         bigint not null,
    deadline_at_ms    bigint,
    enqueued_at_ms    bigint not null,
    finished_at_ms    bigint,
    lease_until_ms    bigint,
    started_at_ms     bigint,
    deferred_since_ms bigint,
    predecessor       bigint,
    session           bigint,
    enqueue_seq       bigint,
    percent           double precision,
    route             integer not null,
    priority          integer not null,
    attempt           integer not null default 0,
    max_attempts      integer not null,
    epoch             integer not null default 0,
    claim_place       integer,
    deferrals         integer not null default 0,
    releases          integer not null default 0,
    event_count       integer not null,
    cancel_requested  smallint not null default 0,
    unacknowledged    smallint not null default 0,
    suspect           smallint not null default 0,
    record_all        smallint not null,
    id                text collate "C" not null unique,
    state             text collate "C" not null,
    tenant            text collate "C" not null,
    fair_key              text collate "C" not null,
    affinity          text collate "C",
    worker            text collate "C",
    incarnation       text collate "C",
    lease_token       text collate "C",
    outcome           text collate "C",
    settle_digest     text collate "C",
    dedupe_key        text collate "C",
    dedupe_kind       text collate "C",
    digest            bytea,
    entry             text collate "C",
    phase             text collate "C",
    backoff           text collate "C",
    failure_class     text collate "C",
    failure_reason    text collate "C",
    failure_message   text collate "C",
    failure_traceback text collate "C",
    headers           text collate "C" not null,
    tags              text collate "C" not null,
    result            text collate "C",
    payload           text collate "C" not null
) with (
    fillfactor = 85,
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_insert_scale_factor = 0.1,
    autovacuum_analyze_scale_factor = 0.05,
    autovacuum_analyze_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0
);

-- Store one plain job, due at once, under the routing table that the caller knows; nothing if that has changed. As a function,
-- because its plan is kept even where the call comes without values beside its text.
create function holdfast.job_store(
    known_version text, clock_ms bigint, route integer, id text, tenant text, fair_key text, priority integer, affinity text,
    payload text, headers text, tags text, max_attempts integer, backoff text, out seq bigint, out now_ms bigint
) language plpgsql volatile as
$$
begin
    if holdfast.routing_version(true) = known_version then
        seq := nextval('holdfast.job_seq');
        now_ms := coalesce(clock_ms, holdfast.clock_ms());
        insert into holdfast.job (
            route, seq, id, state, tenant, fair_key, priority, affinity, payload, headers, tags,
            enqueued_at_ms, due_at_ms, max_attempts, backoff, record_all, event_count
        ) values (
            route, seq, id, 'ready', tenant, fair_key, priority, affinity, payload, headers, tags,
            now_ms, now_ms, max_attempts, backoff, 0, 0
        );
    end if;
end
$$;

-- One index serves order, fairness and filters: per route the first priority, then the next fair_key, then its first row.
create index job_ready on holdfast.job (route, priority desc, fair_key, due_at_ms, seq)
    where state = 'ready';

-- The same order beside one affinity; only jobs that name one pay for it.
create index job_affinity on holdfast.job (route, priority desc, affinity, fair_key, due_at_ms, seq)
    where state = 'ready' and affinity is not null;

-- Strict lanes have no fair_keys to find a tenant by; only their jobs pay for these two.
create index job_strict on holdfast.job (tenant, route, priority desc, due_at_ms, seq)
    where state = 'ready' and fair_key = '';
create index job_strict_affinity on holdfast.job (tenant, route, priority desc, affinity, due_at_ms, seq)
    where state = 'ready' and fair_key = '' and affinity is not null;

-- Future jobs, found when their moment has come.
create index job_scheduled on holdfast.job (due_at_ms, seq)
    where state = 'scheduled';

-- Running jobs, found when their lease has expired, and by the worker that holds them. The second says more than it has to,
-- so that nobody who looks for leases is led through all that runs.
create index job_lease on holdfast.job (lease_until_ms)
    where state = 'running';
create index job_holder on holdfast.job (worker, lease_token)
    where state = 'running' and worker is not null;

-- Jobs whose last attempt expired, few as they are, for those who look after them.
create index job_suspect on holdfast.job (suspect, state, worker, incarnation)
    where suspect = 1;

-- Waiting jobs that must be started in time.
create index job_deadline on holdfast.job (deadline_at_ms)
    where deadline_at_ms is not null and state in ('scheduled', 'blocked', 'ready');

-- At most one unfinished job for a key, and at most one that waits to succeed it.
create unique index job_dedupe on holdfast.job (tenant, dedupe_kind, dedupe_key)
    where dedupe_key is not null and state in ('scheduled', 'ready', 'running');
create unique index job_successor on holdfast.job (tenant, dedupe_kind, dedupe_key)
    where dedupe_key is not null and state = 'blocked';
create index job_predecessor on holdfast.job (predecessor)
    where state = 'blocked';

-- Finished jobs by their end, for lists and retention.
create index job_finished on holdfast.job (state, finished_at_ms, seq)
    where finished_at_ms is not null;

-- Batches of sessions: those that stand in line, those that run, those for later, and all of a session by their age.
-- Other jobs are in none of these.
create index job_line on holdfast.job (session, enqueue_seq)
    where session is not null and (state = 'ready' or (state = 'scheduled' and epoch > 0));
create index job_session_running on holdfast.job (session, lease_until_ms)
    where session is not null and state = 'running';
create index job_session_scheduled on holdfast.job (session, due_at_ms)
    where session is not null and state = 'scheduled';
create index job_session on holdfast.job (session, seq)
    where session is not null;

-- Sessions: counters, the lease of the runtime, the claim given last, and the head that any claimer could take. A row
-- stays when its entries are gone, so that the fence never starts again. Each turn rewrites it a few times.
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
    claim_worker      text collate "C",
    claim_nonce       text collate "C",
    claim_token       text collate "C",
    head_class        text collate "C",
    head_fair_key         text collate "C",
    unique (tenant, name)
) with (
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0
);

-- The heads on offer: per route and class the next fair_key, then the oldest head.
create index session_head on holdfast.session (head_route, head_class, head_fair_key, head_seq)
    where head_seq is not null;
create index session_strict on holdfast.session (tenant, head_route, head_class, head_seq)
    where head_seq is not null and head_fair_key = '';

-- Session leases, found when they have expired, and claims by the nonce that a claimer chose.
create index session_lease on holdfast.session (lease_until_ms)
    where lease_until_ms is not null;
create index session_nonce on holdfast.session (claim_worker, claim_nonce)
    where claim_nonce is not null;

-- A session as the code reads it: columns in the order of its fields.
create view holdfast.session_row as
select number, tenant, name, enqueue_seq, fence, generation, lease_token, lease_worker, lease_incarnation,
       lease_until_ms, claim_id, claim_worker, claim_nonce, claim_token, head_route, head_class, head_fair_key, head_seq
  from holdfast.session;

-- Which source keys a session has seen. A row outlives its entry: when that is deleted, the moment is noted.
create table holdfast.session_source (
    session        bigint not null,
    seq            bigint not null,
    enqueue_seq    bigint not null,
    enqueued_at_ms bigint not null,
    deleted_at_ms  bigint,
    route          integer not null,
    source_key     text collate "C" not null,
    id             text collate "C" not null,
    entry          text collate "C" not null,
    state          text collate "C",
    primary key (session, source_key)
);
create index session_source_seq on holdfast.session_source (seq);
create index session_source_deleted on holdfast.session_source (deleted_at_ms)
    where deleted_at_ms is not null;

-- A job as the code reads it: columns in the order of its fields.
create view holdfast.job_row as
select j.seq, j.id, j.state, r.kind, r.lane, j.tenant, j.fair_key, j.priority, j.affinity,
       r.requires as requires_json, j.payload as payload_json, j.headers as headers_json, j.tags as tags_json,
       j.result as result_json, j.enqueued_at_ms, j.due_at_ms, j.deadline_at_ms, j.finished_at_ms,
       j.attempt, j.max_attempts, j.backoff as backoff_json, j.epoch, j.worker, j.incarnation, j.lease_token,
       j.lease_until_ms, j.claim_place, j.started_at_ms, j.outcome, j.settle_digest, j.phase, j.percent, j.unacknowledged,
       j.cancel_requested, j.suspect, j.deferrals, j.deferred_since_ms, j.releases, j.failure_class,
       j.failure_reason, j.failure_message, j.failure_traceback, j.dedupe_key, j.dedupe_kind, j.predecessor,
       j.digest, j.session as session_number, j.enqueue_seq, j.entry as entry_json, j.record_all, j.event_count
  from holdfast.job j
 cross join lateral holdfast.route_of(j.route) r;

-- Attempts that ended while their job went on; the newest attempt stands in the job's own row.
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

-- Named bytes that belong to a job.
create table holdfast.artifact (
    seq           bigint not null,
    name          text collate "C" not null,
    media_type    text not null,
    size          bigint not null,
    epoch         integer not null,
    created_at_ms bigint not null,
    data          bytea not null,
    primary key (seq, name)
);
-- Most artifacts come compressed already.
alter table holdfast.artifact alter column data set storage external;

-- The event log, pruned only from its start. Transactions become visible in another order than they began in, so that
-- the log is read by transaction first, and only below the oldest one that is still open.
create table holdfast.event (
    xid            xid8 not null default pg_current_xact_id(),
    event          bigint not null generated always as identity,
    at_ms          bigint not null,
    due_at_ms      bigint,
    route          integer not null,
    number         integer not null,
    attempt        integer not null,
    epoch          integer not null,
    name           text not null,
    job_id         text not null,
    tenant         text not null,
    tags           text not null,
    state          text not null,
    worker         text,
    failure_class  text,
    failure_reason text,
    primary key (xid, event)
) with (
    autovacuum_vacuum_scale_factor = 0.05,
    autovacuum_vacuum_insert_scale_factor = 0.1
);
