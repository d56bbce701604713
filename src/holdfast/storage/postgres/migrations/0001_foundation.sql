-- The foundation: jobs, their attempts and artifacts, sessions, lanes, routes, fair_keys, workers, events.
-- Names are compared byte by byte (collation "C"), like the domain's order, in a database of any language.

-- The store's clock, which each transaction reads once.
create function holdfast.clock_ms() returns bigint language sql volatile as
$$ select (extract(epoch from clock_timestamp()) * 1000)::bigint $$;

-- Every write transaction begins with this function: it sets local settings and returns the clock. It is a function
-- so that its plans are cached. Statistics may be old or missing; regardless of them, a claim must scan its index in
-- order and stop early. Full scans then appear expensive to the planner, but those tables are small; JIT compilation
-- and replanning are not worthwhile. If a client is silent for as long as other transactions wait for a lock, it is
-- assumed stopped or disconnected, and the server releases its locks.
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

-- Single values: the lowest code version that may use this schema, the routing version, the event horizon, and the
-- identity of this store, to detect a connection to another one.
create table holdfast.meta (
    name  text collate "C" primary key,
    value text not null
);

insert into holdfast.meta (name, value) values
    ('code_version_min', '0.1.0'),
    ('routing_version', '0'),
    ('event_horizon', '0-0'),
    ('identity', gen_random_uuid()::text);

-- Lock dedupe keys and chosen ids, each as a number, until the transaction ends. Every call locks them in order, so
-- that calls with the same keys wait for each other and do not deadlock.
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

-- The registry of workers: their settings and the time of their last report. For information only.
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
    requested     text,
    started_at_ms bigint not null,
    beat_at_ms    bigint not null,
    primary key (worker, incarnation)
) with (fillfactor = 50);
create index worker_beat on holdfast.worker (beat_at_ms);

-- Numbers in enqueue order, never reused.
create sequence holdfast.job_seq;

-- Jobs. Rows are updated a few times and then stay unchanged: pages keep free space, and vacuum runs early.
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
    claim_index       integer,
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
    digest            text,
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

-- Store one plain job, due at once, if the routing table still has the caller's version. It is a function so that its
-- plan is cached even if the call has literals instead of parameters.
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

-- One index serves order, fairness and filters: per route the highest priority, then the next fair_key, then its
-- first job.
create index job_ready on holdfast.job (route, priority desc, fair_key, due_at_ms, seq)
    where state = 'ready';

-- The same order within one affinity; it contains only jobs that name one.
create index job_affinity on holdfast.job (route, priority desc, affinity, fair_key, due_at_ms, seq)
    where state = 'ready' and affinity is not null;

-- Strict lanes have no fair_keys by which to find a tenant; these two indexes contain only their jobs.
create index job_strict on holdfast.job (tenant, route, priority desc, due_at_ms, seq)
    where state = 'ready' and fair_key = '';
create index job_strict_affinity on holdfast.job (tenant, route, priority desc, affinity, due_at_ms, seq)
    where state = 'ready' and fair_key = '' and affinity is not null;

-- Scheduled jobs, by due time.
create index job_scheduled on holdfast.job (due_at_ms, seq)
    where state = 'scheduled';

-- Running jobs, by lease expiry, and by the worker that holds them. The condition of the second is stricter than
-- needed, so that the planner does not use it to find expired leases.
create index job_lease on holdfast.job (lease_until_ms)
    where state = 'running';
create index job_holder on holdfast.job (worker, lease_token)
    where state = 'running' and worker is not null;

-- Suspect jobs, whose last attempt expired; there are few.
create index job_suspect on holdfast.job (suspect, state, worker, incarnation)
    where suspect = 1;

-- Waiting jobs with a deadline.
create index job_deadline on holdfast.job (deadline_at_ms)
    where deadline_at_ms is not null and state in ('scheduled', 'blocked', 'ready');

-- At most one unfinished job per dedupe key, and at most one blocked successor.
create unique index job_dedupe on holdfast.job (tenant, dedupe_kind, dedupe_key)
    where dedupe_key is not null and state in ('scheduled', 'ready', 'running');
create unique index job_successor on holdfast.job (tenant, dedupe_kind, dedupe_key)
    where dedupe_key is not null and state = 'blocked';
create index job_predecessor on holdfast.job (predecessor)
    where state = 'blocked';

-- Finished jobs by finish time, for lists and retention.
create index job_finished on holdfast.job (state, finished_at_ms, seq)
    where finished_at_ms is not null;

-- Session entries: those in line, running ones, scheduled ones, and all entries of a session by age. Other jobs are
-- in none of these indexes.
create index job_line on holdfast.job (session, enqueue_seq)
    where session is not null and (state = 'ready' or (state = 'scheduled' and epoch > 0));
create index job_session_running on holdfast.job (session, lease_until_ms)
    where session is not null and state = 'running';
create index job_session_scheduled on holdfast.job (session, due_at_ms)
    where session is not null and state = 'scheduled';
create index job_session on holdfast.job (session, seq)
    where session is not null;

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

-- A job as the code reads it: columns in the order of its fields.
create view holdfast.job_row as
select j.seq, j.id, j.state, r.kind, r.lane, j.tenant, j.fair_key, j.priority, j.affinity,
       r.requires as requires_json, j.payload as payload_json, j.headers as headers_json, j.tags as tags_json,
       j.result as result_json, j.enqueued_at_ms, j.due_at_ms, j.deadline_at_ms, j.finished_at_ms,
       j.attempt, j.max_attempts, j.backoff as backoff_json, j.epoch, j.worker, j.incarnation, j.lease_token,
       j.lease_until_ms, j.claim_index, j.started_at_ms, j.outcome, j.settle_digest, j.phase, j.percent, j.unacknowledged,
       j.cancel_requested, j.suspect, j.deferrals, j.deferred_since_ms, j.releases, j.failure_class,
       j.failure_reason, j.failure_message, j.failure_traceback, j.dedupe_key, j.dedupe_kind, j.predecessor,
       j.digest, j.session as session_number, j.enqueue_seq, j.entry as entry_json, j.record_all, j.event_count
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

-- The event log, pruned only from its start. Transactions become visible in a different order than they begin in, so
-- the log is read in transaction order, and only up to the oldest open transaction.
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
