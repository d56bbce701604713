-- The foundation: jobs, their attempts and artifacts, sessions, lanes, routes, fair_keys, workers, events.

-- Single values: the lowest code version that may use this schema, the routing version, the event horizon, the lease
-- clock.
create table holdfast_meta (
    name  text primary key,
    value text not null
) strict, without rowid;

insert into holdfast_meta (name, value) values
    ('code_version_min', '0.1.0'),
    ('routing_version', '0'),
    ('event_horizon', '0');

-- Configured lanes; any other lane has the defaults.
create table holdfast_lane (
    lane       text primary key,
    state      text not null check (state in ('active', 'paused', 'draining')),
    lane_order text not null check (lane_order in ('fair', 'strict')),
    events     text not null check (events in ('terminal', 'all')),
    backoff    text not null check (backoff in ('block', 'skip'))
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

-- The registry of workers: their settings and the time of their last report. For information only.
create table holdfast_worker (
    worker        text not null,
    incarnation   text not null,
    host          text not null,
    process       integer not null,
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
    started_at_ms integer not null,
    beat_at_ms    integer not null,
    primary key (worker, incarnation)
) strict, without rowid;
create index holdfast_worker_beat on holdfast_worker (beat_at_ms);

-- Jobs. Without AUTOINCREMENT the number of a deleted last row would be reused. Wide columns are last, so that
-- reading narrow ones does not load their pages.
create table holdfast_job (
    seq               integer primary key autoincrement,
    id                text not null unique,
    state             text not null,
    route             integer not null,
    tenant            text not null,
    fair_key              text not null,
    priority          integer not null,
    affinity          text,
    due_at_ms         integer not null,
    deadline_at_ms    integer,
    enqueued_at_ms    integer not null,
    finished_at_ms    integer,
    attempt           integer not null,
    max_attempts      integer not null,
    epoch             integer not null,
    worker            text,
    incarnation       text,
    lease_token       text,
    lease_until_ms    integer,
    claim_index       integer,
    started_at_ms     integer,
    outcome           text,
    settle_digest     text,
    unacknowledged    integer not null default 0,
    cancel_requested  integer not null,
    suspect           integer not null,
    deferrals         integer not null,
    deferred_since_ms integer,
    releases          integer not null,
    record_all        integer not null,
    event_count       integer not null,
    dedupe_key        text,
    dedupe_kind       text,
    predecessor       integer,
    digest            blob,
    session           integer,
    enqueue_seq       integer,
    entry             text,
    phase             text,
    percent           real,
    backoff           text,
    failure_class     text,
    failure_reason    text,
    failure_message   text,
    failure_traceback text,
    headers           text not null,
    tags              text not null,
    result            text,
    payload           text not null
) strict;

-- One index serves order, fairness and filters: per route the highest priority, then the next fair_key, then its
-- first job.
create index holdfast_job_ready on holdfast_job (route, priority desc, fair_key, due_at_ms, seq)
    where state = 'ready';

-- The same order within one affinity; it contains only jobs that name one.
create index holdfast_job_affinity on holdfast_job (route, priority desc, affinity, fair_key, due_at_ms, seq)
    where state = 'ready' and affinity is not null;

-- Strict lanes have no fair_keys by which to find a tenant; these two indexes contain only their jobs.
create index holdfast_job_strict on holdfast_job (tenant, route, priority desc, due_at_ms, seq)
    where state = 'ready' and fair_key = '';
create index holdfast_job_strict_affinity on holdfast_job (tenant, route, priority desc, affinity, due_at_ms, seq)
    where state = 'ready' and fair_key = '' and affinity is not null;

-- Scheduled jobs, by due time.
create index holdfast_job_scheduled on holdfast_job (due_at_ms, seq)
    where state = 'scheduled';

-- Running jobs, by lease expiry, and by the worker that holds them.
create index holdfast_job_lease on holdfast_job (lease_until_ms)
    where state = 'running';
create index holdfast_job_holder on holdfast_job (worker, lease_token)
    where state = 'running';

-- Suspect jobs, whose last attempt expired; there are few.
create index holdfast_job_suspect on holdfast_job (suspect, state, worker, incarnation)
    where suspect = 1;

-- Waiting jobs with a deadline.
create index holdfast_job_deadline on holdfast_job (deadline_at_ms)
    where deadline_at_ms is not null and state in ('scheduled', 'blocked', 'ready');

-- At most one unfinished job per dedupe key, and at most one blocked successor.
create unique index holdfast_job_dedupe on holdfast_job (tenant, dedupe_kind, dedupe_key)
    where dedupe_key is not null and state in ('scheduled', 'ready', 'running');
create unique index holdfast_job_successor on holdfast_job (tenant, dedupe_kind, dedupe_key)
    where dedupe_key is not null and state = 'blocked';
create index holdfast_job_predecessor on holdfast_job (predecessor)
    where state = 'blocked';

-- Finished jobs by finish time, for lists and retention.
create index holdfast_job_finished on holdfast_job (state, finished_at_ms, seq)
    where finished_at_ms is not null;

-- Session entries: those in line, running ones, scheduled ones, and all entries of a session by age. Other jobs are
-- in none of these indexes.
create index holdfast_job_line on holdfast_job (session, enqueue_seq)
    where session is not null and (state = 'ready' or (state = 'scheduled' and epoch > 0));
create index holdfast_job_session_running on holdfast_job (session, lease_until_ms)
    where session is not null and state = 'running';
create index holdfast_job_session_scheduled on holdfast_job (session, due_at_ms)
    where session is not null and state = 'scheduled';
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

-- A job as the code reads it: columns in the order of its fields.
create view holdfast_job_row as
select j.seq, j.id, j.state, r.kind, r.lane, j.tenant, j.fair_key, j.priority, j.affinity,
       r.requires as requires_json, j.payload as payload_json, j.headers as headers_json, j.tags as tags_json,
       j.result as result_json, j.enqueued_at_ms, j.due_at_ms, j.deadline_at_ms, j.finished_at_ms,
       j.attempt, j.max_attempts, j.backoff as backoff_json, j.epoch, j.worker, j.incarnation, j.lease_token,
       j.lease_until_ms, j.claim_index, j.started_at_ms, j.outcome, j.settle_digest, j.phase, j.percent, j.unacknowledged,
       j.cancel_requested, j.suspect, j.deferrals, j.deferred_since_ms, j.releases, j.failure_class, j.failure_reason,
       j.failure_message, j.failure_traceback, j.dedupe_key, j.dedupe_kind, j.predecessor, j.digest,
       j.session as session_number, j.enqueue_seq, j.entry as entry_json, j.record_all, j.event_count
  from holdfast_job j
  join holdfast_route r on r.route = j.route;

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

-- The event log, pruned only from its start. Values that may change later, such as tags, are copied.
create table holdfast_event (
    event          integer primary key autoincrement,
    name           text not null,
    at_ms          integer not null,
    job_id         text not null,
    number         integer not null,
    route          integer not null,
    tenant         text not null,
    tags           text not null,
    state          text not null,
    attempt        integer not null,
    epoch          integer not null,
    worker         text,
    due_at_ms      integer,
    failure_class  text,
    failure_reason text
) strict;
