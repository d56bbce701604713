-- The foundation: jobs, their attempts and artifacts, sessions, lanes, routes, fair_keys, workers, events.

-- Single values: the lowest code version that may use this schema, the routing version, the event horizon, how many
-- old holders were in use when they were last looked for, the wall clock time that was noted last, to detect that it was
-- set back, the position of the webhook dispatcher, the lease clock.
create table holdfast_meta (
    name  text primary key,
    value text not null
) strict, without rowid;

insert into holdfast_meta (name, value) values
    ('code_version_min', '0.1.0'),
    ('routing_version', '0'),
    ('edges', '0'),
    ('limits', '0'),
    ('noted_ms', '0'),
    ('event_horizon', '0'),
    ('holders_kept', '0'),
    ('webhook_position', '0-0 0 ');

-- Configured lanes; any other lane has the defaults.
create table holdfast_lane (
    lane       text primary key,
    state      text not null check (state in ('active', 'paused', 'draining')),
    lane_order text not null check (lane_order in ('fair', 'strict')),
    events     text not null check (events in ('terminal', 'all')),
    backoff    text not null check (backoff in ('block', 'skip')),
    max_waiting   integer,
    target_age_ms integer,
    late       integer not null default 0
) strict, without rowid;

-- The catalog of kinds: what workers publish about their tasks, and which kinds are retired and accept no new jobs.
create table holdfast_kind (
    kind            text primary key,
    options         text,
    timeout_ms      integer,
    session         integer,
    schema          text,
    published_by    text,
    published_at_ms integer,
    retired_at_ms   integer
) strict, without rowid;

-- Tokens of the HTTP service: grants, and the SHA-256 of the secret. Roles, scopes and ceilings are JSON.
create table holdfast_token (
    id              text primary key,
    name            text not null,
    hash            text not null,
    tenant          text,
    roles           text not null,
    scopes          text not null,
    ceilings        text not null,
    created_at_ms   integer not null,
    expires_at_ms   integer,
    last_used_at_ms integer,
    revoked_at_ms   integer
) strict, without rowid;

-- Webhooks: endpoints, which events are delivered to them, the secrets that sign deliveries, and whether the endpoint
-- is closed. Types, kinds, lanes, tags, secrets and the places of sending processes are JSON.
create table holdfast_webhook (
    id                 text primary key,
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
    created_at_ms      integer not null,
    since_ms           integer not null,
    last_success_at_ms integer,
    failing_since_ms   integer,
    closed_until_ms    integer,
    last_answer        text,
    secrets            text not null,
    closings           integer not null,
    probe_until_ms     integer,
    places             text not null
) strict, without rowid;

-- The URLs to which jobs send their events. A row is deleted after its job, once all its events have been read.
create table holdfast_webhook_job (
    job_id text primary key,
    url    text not null
) strict, without rowid;

-- What waits for a time or for another row: look at this target once the time has passed, or at once if it is 0, also
-- when the clock is set back. Claims fold these rows.
create table holdfast_wake (
    wake   integer primary key,
    at_ms  integer not null,
    target text not null check (target in ('schedule', 'child', 'parent', 'group', 'gate', 'requeue', 'lanes')),
    number integer not null
) strict;
create index holdfast_wake_at on holdfast_wake (at_ms);
create index holdfast_wake_target on holdfast_wake (target, number);

-- Schedules. Each that is not paused has one wake row, at its next tick. Options and the next ticks are JSON.
create table holdfast_schedule (
    number         integer primary key,
    tenant         text not null,
    name           text not null,
    kind           text not null,
    payload        text not null,
    options        text not null,
    cron           text,
    every_ms       integer,
    zone           text not null,
    missed         text not null check (missed in ('one', 'skip')),
    overlap        text not null check (overlap in ('allow', 'skip')),
    owner          text,
    ticks          text not null,
    last_at_ms     integer not null,
    last_tick_ms   integer,
    last_job_id    text,
    paused         integer not null,
    problem        text,
    set_at_ms      integer not null,
    declared_at_ms integer,
    unique (tenant, name)
) strict;

-- Dependencies: the child runs after the parent has ended. `ended` is the number of the state in which it has, once the
-- child was told. A job with `awaited` appends a wake row when it ends. A group is a child of its members, and the parent
-- of its callbacks, by its number times -1.
create table holdfast_edge (
    child     integer not null,
    parent    integer not null,
    place     integer not null,
    on_failed text not null check (on_failed in ('cancel', 'run')),
    ended     integer,
    primary key (child, parent)
) strict, without rowid;
create index holdfast_edge_parent on holdfast_edge (parent, child);
create index holdfast_edge_pending on holdfast_edge (child)
    where ended is null;
create index holdfast_edge_waiting on holdfast_edge (parent, child)
    where ended is null;

-- Failures of jobs, for lists and counts by fingerprint, and what failures with one fingerprint have in common, by
-- tenant and lane. The frames are JSON. `last_at_ms` is exact to the minute, so that most failures write no pattern.
create table holdfast_failure_pattern (
    fingerprint text not null,
    tenant      text not null,
    lane        text not null,
    kind        text not null,
    error       text not null,
    frames      text not null,
    message     text not null,
    first_at_ms integer not null,
    last_at_ms  integer not null,
    primary key (fingerprint, tenant, lane)
) strict, without rowid;
create index holdfast_failure_pattern_last on holdfast_failure_pattern (last_at_ms desc, fingerprint, tenant, lane);

create table holdfast_failure (
    fingerprint text not null,
    at_ms       integer not null,
    seq         integer not null,
    tenant      text not null,
    lane        text not null,
    primary key (fingerprint, at_ms, seq)
) strict, without rowid;
create index holdfast_failure_owner on holdfast_failure (fingerprint, tenant, lane, at_ms, seq);
create index holdfast_failure_at on holdfast_failure (at_ms);

-- Groups: how many members have ended, as far as their wake rows were folded, and the callbacks, as JSON.
create table holdfast_group (
    number           integer primary key autoincrement,
    tenant           text not null,
    name             text not null,
    sealed           integer not null,
    members          integer not null,
    done             integer not null,
    failed           integer not null,
    cancelled        integer not null,
    retired          integer not null,
    on_end           text,
    on_success       text,
    on_first_failure text,
    token            text not null,
    problem          text,
    created_at_ms    integer not null,
    ended_at_ms      integer,
    unique (tenant, name)
) strict;
create index holdfast_group_ended on holdfast_group (ended_at_ms)
    where ended_at_ms is not null;

-- Limits by key. Kinds and lanes are JSON; null means any.
create table holdfast_flow_limit (
    number      integer primary key autoincrement,
    name        text not null unique,
    kinds       text,
    lanes       text,
    key_source  text not null,
    concurrency integer,
    rate        integer,
    period_ms   integer,
    burst       integer,
    weight      text
) strict;

-- Gates: a limit for one key. The number of permits in use is that of running jobs which name the gate. A gate may
-- outlive its limit, until nothing waits at it.
create table holdfast_gate (
    gate            integer primary key autoincrement,
    flow_limit      integer not null,
    key             text not null,
    until_us        integer not null default 0,
    closed_until_ms integer not null default 0,
    wake_at_ms      integer not null default 0,
    turns           text not null default '{}',
    unique (flow_limit, key)
) strict;
create index holdfast_gate_closed on holdfast_gate (closed_until_ms)
    where closed_until_ms > 0;

-- The keys and weights that jobs were given for limits.
create table holdfast_limit_key (
    seq    integer primary key,
    key    text,
    weight integer
) strict;

-- How much more than their weight jobs have used at a gate, negative if less, until a fold corrects the gate.
create table holdfast_gate_usage (
    number integer primary key,
    gate   integer not null,
    amount integer not null
) strict;
create index holdfast_gate_usage_gate on holdfast_gate_usage (gate);

-- What processes counted in a stretch of time: arrivals, ends by outcome, and histograms, by lane and kind, as JSON.
create table holdfast_rollup (
    number   integer primary key,
    width_ms integer not null,
    at_ms    integer not null,
    data     text not null
) strict;
create index holdfast_rollup_at on holdfast_rollup (at_ms);
create index holdfast_rollup_width on holdfast_rollup (width_ms, at_ms);

-- What operators did, on the command line and over HTTP.
create table holdfast_audit (
    entry  integer primary key autoincrement,
    at_ms  integer not null,
    actor  text not null,
    action text not null,
    target text not null,
    detail text not null
) strict;

-- Each combination of lane, kind, required capabilities, "names an affinity" and "is an entry of a session", as a
-- small number.
create table holdfast_route (
    route    integer primary key,
    lane     text not null,
    kind     text not null,
    requires text not null,
    has_affinity   integer not null,
    session  integer not null,
    unique (lane, kind, requires, has_affinity, session)
) strict;

-- The fair_key served last in each fairness scope. Only a hint for fairness.
create table holdfast_fair_key (
    scope      text primary key,
    fair_key       text not null,
    used_at_ms integer not null
) strict, without rowid;

-- The starts of exclusive workers; the newest is valid, claims of the others are refused.
create table holdfast_incarnation (
    worker        text not null,
    incarnation   text not null,
    started_at_ms integer not null,
    superseded    integer not null default 0,
    primary key (worker, incarnation)
) strict, without rowid;

-- The registry of workers: their settings, the time of their last report, and how often calls of the process that wrote
-- it took their plain form, as JSON. For information only.
create table holdfast_worker (
    worker         text not null,
    incarnation    text not null,
    host           text not null,
    process        integer not null,
    version        text not null,
    state          text not null,
    concurrency    integer not null,
    running        integer not null,
    lanes          text not null,
    kinds          text not null,
    capabilities   text not null,
    loaded         text not null,
    switches       integer not null,
    switches_saved integer not null,
    hold_left_ms   integer,
    forms          text not null,
    requested      text,
    started_at_ms  integer not null,
    beat_at_ms     integer not null,
    primary key (worker, incarnation)
) strict, without rowid;
create index holdfast_worker_beat on holdfast_worker (beat_at_ms);

-- The states of a job: waiting below 10, finished from 20. 30 is the tombstone of a deleted job with the highest
-- number, which keeps that number from being used again; it is visible in no list.
create table holdfast_state (
    number integer primary key,
    name   text not null unique
) strict;
insert into holdfast_state (number, name) values
    (0, 'scheduled'), (1, 'blocked'), (2, 'dependent'), (3, 'parked'), (5, 'ready'), (10, 'running'),
    (20, 'done'), (21, 'failed'), (22, 'cancelled'), (23, 'retired');

-- Each start of a worker that has held jobs, as a small number, and when it has claimed, to the hour.
create table holdfast_holder (
    holder      integer primary key,
    worker      text not null,
    incarnation text not null,
    used_at_ms  integer not null,
    unique (worker, incarnation)
) strict;

-- Jobs, one narrow row each. Values that few jobs have are in `extra`, a JSON object that is null for the others.
-- Payloads above 1 KiB are in a table of their own, so that a claim and a settle do not rewrite them.
-- `rare_state` is the state again, if the job belongs to an index that few jobs belong to, by its affinity, strict lane,
-- deadline, gate, dedupe key, session or suspicion; once set it stays. It is null for the others: a statement that
-- changes only their state opens none of these indexes.
-- `ends_at_ms` is when the lease of a running job ends, or when a finished job has ended; null for the others.
create table holdfast_job (
    seq              integer primary key,
    state            integer not null,
    route            integer not null,
    priority         integer not null,
    fair_key         text not null,
    due_at_ms        integer not null,
    epoch            integer not null default 0,
    attempt          integer not null default 0,
    event_count      integer not null default 0,
    max_attempts     integer not null,
    enqueued_at_ms   integer not null,
    started_at_ms    integer,
    finished_at_ms   integer,
    holder           integer,
    lease_token      text,
    lease_until_ms   integer,
    claim_index      integer,
    unacknowledged   integer not null default 0,
    suspect          integer not null default 0,
    cancel_requested integer not null default 0,
    awaited          integer not null default 0,
    gate             integer,
    rare_state       integer,
    id               text not null unique,
    tenant           text not null,
    deadline_at_ms   integer,
    affinity         text,
    dedupe_key       text,
    dedupe_kind      text,
    predecessor      integer,
    session          integer,
    enqueue_seq      integer,
    root             text,
    phase            text,
    percent          real,
    extra            text,
    result           text,
    payload          text,
    ends_at_ms       integer as (coalesce(lease_until_ms, finished_at_ms)) virtual,
    check (rare_state is state or state = 30
           or (coalesce(rare_state, affinity, deadline_at_ms, gate, dedupe_key, session) is null and fair_key <> ''
               and suspect = 0 and state <> 1))
) strict;

-- Payloads above 1 KiB.
create table holdfast_body (
    seq     integer primary key,
    payload text not null
) strict;

-- One index serves order, fairness and filters: per route the highest priority, then the next fair_key, then its
-- first job.
create index holdfast_job_ready on holdfast_job (route, priority desc, fair_key, due_at_ms, seq)
    where state = 5;

-- The same order within one affinity; it contains only jobs that name one.
create index holdfast_job_affinity on holdfast_job (route, priority desc, affinity, fair_key, due_at_ms, seq)
    where rare_state = 5 and affinity is not null;

-- Strict lanes have no fair_keys by which to find a tenant; these two indexes contain only their jobs.
create index holdfast_job_strict on holdfast_job (tenant, route, priority desc, due_at_ms, seq)
    where rare_state = 5 and fair_key = '';
create index holdfast_job_strict_affinity on holdfast_job (tenant, route, priority desc, affinity, due_at_ms, seq)
    where rare_state = 5 and fair_key = '' and affinity is not null;

-- Scheduled jobs, by due time.
create index holdfast_job_scheduled on holdfast_job (due_at_ms, seq)
    where state = 0;

-- Suspect jobs, whose last attempt expired; there are few.
create index holdfast_job_suspect on holdfast_job (suspect, rare_state)
    where suspect = 1;

-- Waiting jobs with a deadline.
create index holdfast_job_deadline on holdfast_job (deadline_at_ms)
    where deadline_at_ms is not null and rare_state < 10;

-- Jobs at gates: parked ones wait in the order of claims, ready ones were offered room, running ones hold a permit.
-- Finished ones keep their gate, and are in none of these indexes.
create index holdfast_job_parked on holdfast_job (gate, route, priority desc, fair_key, due_at_ms, seq)
    where gate is not null and rare_state = 3;
create index holdfast_job_offered on holdfast_job (gate, route)
    where gate is not null and rare_state = 5;
create index holdfast_job_permit on holdfast_job (gate)
    where gate is not null and rare_state = 10;

-- At most one unfinished job per dedupe key, and at most one blocked successor.
create unique index holdfast_job_dedupe on holdfast_job (tenant, dedupe_kind, dedupe_key)
    where dedupe_key is not null and rare_state in (0, 2, 3, 5, 10);
create unique index holdfast_job_successor on holdfast_job (tenant, dedupe_kind, dedupe_key)
    where dedupe_key is not null and rare_state = 1;
create index holdfast_job_predecessor on holdfast_job (predecessor)
    where rare_state = 1;

-- Jobs that have a parent, by the first job of their tree; others are not in this index.
create index holdfast_job_root on holdfast_job (root)
    where root is not null;

-- Finished jobs by finish time, for lists and retention, and running jobs by lease expiry. In this order of the states,
-- running jobs stand beside those that were done last: a settlement, and a claim with it, changes one page.
create index holdfast_job_ends on holdfast_job (state desc, ends_at_ms, seq)
    where ends_at_ms is not null;

-- Session entries: those in line, running ones, scheduled ones, and all entries of a session by age. Other jobs are
-- in none of these indexes.
create index holdfast_job_line on holdfast_job (session, enqueue_seq)
    where session is not null and (rare_state = 5 or rare_state = 3 or (rare_state = 0 and epoch > 0));
create index holdfast_job_session_running on holdfast_job (session)
    where session is not null and rare_state = 10;
create index holdfast_job_session_scheduled on holdfast_job (session, due_at_ms)
    where session is not null and rare_state = 0;
create index holdfast_job_session on holdfast_job (session, seq)
    where session is not null;

-- Sessions: counters, the lease of the owner, the newest claim, and the head that is claimable. A row stays when
-- its entries are deleted, so that epochs never restart.
create table holdfast_session (
    number            integer primary key,
    tenant            text not null,
    name              text not null,
    enqueue_seq       integer not null default 0,
    fence             integer not null default 0,
    generation        integer not null default 0,
    lease_token       text,
    lease_worker      text,
    lease_incarnation text,
    lease_until_ms    integer,
    claim_id          text,
    head_route        integer,
    head_entry_type   text,
    head_fair_key     text,
    head_seq          integer,
    unique (tenant, name)
) strict;

-- Claimable heads: per route and entry type the next fair_key, then the oldest head.
create index holdfast_session_head on holdfast_session (head_route, head_entry_type, head_fair_key, head_seq)
    where head_seq is not null;
create index holdfast_session_strict on holdfast_session (tenant, head_route, head_entry_type, head_seq)
    where head_seq is not null and head_fair_key = '';

-- Session leases by expiry.
create index holdfast_session_lease on holdfast_session (lease_until_ms)
    where lease_until_ms is not null;

-- A session as the code reads it: columns in the order of its fields.
create view holdfast_session_row as
select number, tenant, name, enqueue_seq, fence, generation, lease_token, lease_worker, lease_incarnation,
       lease_until_ms, claim_id, head_route, head_entry_type, head_fair_key, head_seq
  from holdfast_session;

-- Message ids used in a session. A row outlives its entry and then records when the entry was deleted.
create table holdfast_session_message_id (
    session        integer not null,
    message_id     text not null,
    seq            integer not null,
    id             text not null,
    route          integer not null,
    entry          text not null,
    enqueue_seq    integer not null,
    enqueued_at_ms integer not null,
    state          text,
    deleted_at_ms  integer,
    primary key (session, message_id)
) strict, without rowid;
create index holdfast_session_message_id_seq on holdfast_session_message_id (seq);
create index holdfast_session_message_id_deleted on holdfast_session_message_id (deleted_at_ms)
    where deleted_at_ms is not null;

-- The tags of jobs, for filters. Jobs without tags have no rows.
create table holdfast_tag (
    tag   text not null,
    value text not null,
    seq   integer not null,
    primary key (tag, value, seq)
) strict, without rowid;

-- Dedupe keys that are kept for a period, each with its first job. A row outlives its job and then records when the job
-- was deleted. Rows whose period has passed are deleted by maintenance.
create table holdfast_kept_key (
    tenant         text not null,
    dedupe_kind    text not null,
    dedupe_key     text not null,
    until_ms       integer not null,
    seq            integer not null,
    id             text not null,
    route          integer not null,
    enqueued_at_ms integer not null,
    state          text,
    deleted_at_ms  integer,
    primary key (tenant, dedupe_kind, dedupe_key)
) strict, without rowid;
create index holdfast_kept_key_until on holdfast_kept_key (until_ms);
create index holdfast_kept_key_seq on holdfast_kept_key (seq);

-- A job as the code reads it: columns in the order of its fields, and then, for
-- conditions, the number of its state, the same for few jobs, and when it ends.
create view holdfast_job_row as
select j.seq, j.id,
       case j.state when 0 then 'scheduled' when 1 then 'blocked' when 2 then 'dependent' when 3 then 'parked'
                    when 5 then 'ready'
                    when 10 then 'running'
                    when 20 then 'done' when 21 then 'failed' when 22 then 'cancelled' when 23 then 'retired'
       end as state,
       r.kind, r.lane, j.tenant, j.fair_key, j.priority, j.affinity, r.requires as requires_json,
       coalesce(j.payload, (select b.payload from holdfast_body b where b.seq = j.seq)) as payload_json,
       coalesce(j.extra ->> '$.headers_json', '{}') as headers_json,
       coalesce(j.extra ->> '$.tags_json', '{}') as tags_json,
       j.result as result_json, j.enqueued_at_ms, j.due_at_ms, j.deadline_at_ms, j.finished_at_ms, j.attempt,
       j.max_attempts, j.extra ->> '$.backoff_json' as backoff_json, j.epoch, h.worker, h.incarnation, j.lease_token,
       j.lease_until_ms, j.claim_index, j.started_at_ms,
       case j.state when 20 then 'done' else j.extra ->> '$.outcome' end as outcome,
       j.extra ->> '$.settle_digest' as settle_digest, j.phase, j.percent, j.unacknowledged, j.cancel_requested,
       j.suspect, coalesce(j.extra ->> '$.deferrals', 0) as deferrals,
       j.extra ->> '$.deferred_since_ms' as deferred_since_ms, coalesce(j.extra ->> '$.releases', 0) as releases,
       j.extra ->> '$.failure_class' as failure_class, j.extra ->> '$.failure_reason' as failure_reason,
       j.extra ->> '$.failure_message' as failure_message, j.extra ->> '$.failure_traceback' as failure_traceback,
       j.dedupe_key, j.dedupe_kind, j.predecessor, j.extra ->> '$.digest' as digest,
       j.extra ->> '$.parent' as parent, j.root, j.session as session_number, j.enqueue_seq,
       j.extra ->> '$.entry_json' as entry_json, coalesce(j.extra ->> '$.record_all', 0) as record_all,
       j.event_count, j.state as state_number, j.rare_state, j.ends_at_ms
  from holdfast_job j
  join holdfast_route r on r.route = j.route
  left join holdfast_holder h on h.holder = j.holder
 where j.state <> 30;

-- Attempts that ended before their job finished; the newest attempt is in the job's own row.
create table holdfast_attempt (
    seq               integer not null,
    epoch             integer not null,
    number            integer not null,
    worker            text not null,
    incarnation       text not null,
    started_at_ms     integer not null,
    ended_at_ms       integer not null,
    outcome           text not null,
    failure_class     text,
    failure_reason    text,
    failure_message   text,
    failure_traceback text,
    lease_token       text,
    settle_digest     text,
    primary key (seq, epoch)
) strict;

-- Named bytes that belong to a job. The bytes are those of an upload.
create table holdfast_artifact (
    seq           integer not null,
    name          text not null,
    media_type    text not null,
    size          integer not null,
    digest        text not null,
    input         integer not null,
    epoch         integer not null,
    created_at_ms integer not null,
    upload        text not null,
    primary key (seq, name)
) strict;

-- Bytes in chunks. An upload that no artifact has expires and is deleted; the others have no expiry.
create table holdfast_upload (
    upload        text primary key,
    tenant        text not null,
    chunks        integer not null,
    size          integer not null,
    digest        text,
    expires_at_ms integer
) strict, without rowid;
create index holdfast_upload_expiry on holdfast_upload (expires_at_ms)
    where expires_at_ms is not null;

create table holdfast_upload_chunk (
    upload text not null,
    number integer not null,
    data   blob not null,
    primary key (upload, number)
) strict;

-- The output of jobs, appended by their attempts. `part` is the index within the attempt, `size` the bytes so far.
create table holdfast_output (
    seq     integer not null,
    number  integer not null,
    epoch   integer not null,
    attempt integer not null,
    part    integer not null,
    size    integer not null,
    at_ms   integer not null,
    data    text not null,
    primary key (seq, number)
) strict, without rowid;

-- The event log, pruned only from its start; the newest row stays, so that its number is not used again. Values that
-- few events have are in `more`: the state unless it is the name, tags, the due time and the failure.
create table holdfast_event (
    event   integer primary key,
    name    text not null,
    at_ms   integer not null,
    seq     integer not null,
    number  integer not null,
    route   integer not null,
    tenant  text not null,
    job_id  text not null,
    attempt integer not null,
    epoch   integer not null,
    holder  integer,
    more    text
) strict;
