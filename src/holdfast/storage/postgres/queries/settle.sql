-- Settling: leases, progress, and the writes of transitions.

-- name: job_acknowledge
-- Acknowledge claims that are still held.
update holdfast.job j set unacknowledged = 0
  from unnest(%(c0)s::bigint[], %(c1)s::integer[], %(c2)s::text[], %(c3)s::bigint[])
       as v (seq, epoch, lease_token, lease_now)
 where j.seq = v.seq and j.epoch = v.epoch and j.lease_token = v.lease_token
   and j.state = 'running' and j.lease_until_ms > v.lease_now;

-- name: job_clear_suspicion
-- Clear the suspicion of jobs, only if each still has the epoch that the decision is based on.
with changed as (
    update holdfast.job j
       set suspect = v.suspect, failure_reason = v.failure_reason, failure_message = v.failure_message
      from unnest(%(c0)s::smallint[], %(c1)s::text[], %(c2)s::text[], %(c3)s::bigint[], %(c4)s::integer[])
           as v (suspect, failure_reason, failure_message, seq, epoch)
     where j.seq = v.seq and j.epoch = v.epoch
 returning j.seq
)
select holdfast.place_1(array(select seq from changed));

-- name: job_digest
-- Write the digests by which repeated settlements are recognized, if the result alone is not sufficient.
update holdfast.job j
   set settle_digest = d.digest
  from unnest(%(digests_0)s::bigint[], %(digests_1)s::text[]) as d (seq, digest)
 where j.seq = d.seq;

-- name: job_done
-- Finish running jobs as done: the common values once, and the result of each job.
with ended as (
    update holdfast.job j
       set state = 'done', outcome = 'done', result = r.result, event_count = j.event_count + %(counted)s::integer,
           finished_at_ms = %(finished_at_ms)s, lease_until_ms = null, suspect = 0, unacknowledged = 0,
           failure_class = null, failure_reason = null, failure_message = null, failure_traceback = null
      from unnest(%(results_0)s::bigint[], %(results_1)s::text[]) as r (seq, result)
     where j.seq = r.seq and j.state = 'running'
 returning j.seq, j.event_count
),
listed as (
    insert into holdfast.ended (state, finished_at_ms, seqs, event_counts)
    select 'done', %(finished_at_ms)s::bigint, array_agg(seq order by seq), array_agg(event_count order by seq) from ended
    having count(*) > 0
),
closed as (delete from holdfast.open_job o where o.seq = any (%(results_0)s::bigint[]))
select count(*) from ended;

-- name: job_lease
-- Extend leases and write whether they are acknowledged, only if each job still has the epoch of its claim.
update holdfast.job j set lease_until_ms = v.lease_until_ms, unacknowledged = v.unacknowledged
  from unnest(%(c0)s::bigint[], %(c1)s::smallint[], %(c2)s::bigint[], %(c3)s::integer[])
       as v (lease_until_ms, unacknowledged, seq, epoch)
 where j.seq = v.seq and j.epoch = v.epoch;

-- name: job_progress
-- Write the progress of a running job.
update holdfast.job set phase = %(phase)s, percent = %(percent)s where seq = %(seq)s and epoch = %(epoch)s;

-- name: job_transition
-- Write the changes of transitions, only if each job still has the epoch that the decision is based on.
with changed as (
    update holdfast.job j
       set state = v.state, fair_key = v.fair_key, due_at_ms = v.due_at_ms, deadline_at_ms = v.deadline_at_ms,
           finished_at_ms = v.finished_at_ms, attempt = v.attempt, epoch = v.epoch, worker = v.worker,
           incarnation = v.incarnation, lease_token = v.lease_token, lease_until_ms = v.lease_until_ms,
           claim_index = v.claim_index, started_at_ms = v.started_at_ms, outcome = v.outcome,
           settle_digest = v.settle_digest, phase = v.phase, percent = v.percent,
           cancel_requested = v.cancel_requested, suspect = v.suspect, deferrals = v.deferrals,
           deferred_since_ms = v.deferred_since_ms, releases = v.releases, failure_class = v.failure_class,
           failure_reason = v.failure_reason, failure_message = v.failure_message,
           failure_traceback = v.failure_traceback, predecessor = v.predecessor, event_count = v.event_count,
           result = v.result, unacknowledged = v.unacknowledged
      from unnest(
        %(c0)s::text[], %(c1)s::text[], %(c2)s::bigint[], %(c3)s::bigint[], %(c4)s::bigint[], %(c5)s::integer[],
        %(c6)s::integer[], %(c7)s::text[], %(c8)s::text[], %(c9)s::text[], %(c10)s::bigint[], %(c11)s::integer[],
        %(c12)s::bigint[], %(c13)s::text[], %(c14)s::text[], %(c15)s::text[], %(c16)s::double precision[],
        %(c17)s::smallint[], %(c18)s::smallint[], %(c19)s::integer[], %(c20)s::bigint[], %(c21)s::integer[],
        %(c22)s::text[], %(c23)s::text[], %(c24)s::text[], %(c25)s::text[], %(c26)s::bigint[], %(c27)s::integer[],
        %(c28)s::text[], %(c29)s::smallint[], %(c30)s::bigint[], %(c31)s::integer[]
      ) as v (
        state, fair_key, due_at_ms, deadline_at_ms, finished_at_ms, attempt, epoch, worker, incarnation, lease_token,
        lease_until_ms, claim_index, started_at_ms, outcome, settle_digest, phase, percent, cancel_requested, suspect,
        deferrals, deferred_since_ms, releases, failure_class, failure_reason, failure_message, failure_traceback,
        predecessor, event_count, result, unacknowledged, seq, epoch_before
      )
     where j.seq = v.seq and j.epoch = v.epoch_before
 returning j.seq, j.state, j.finished_at_ms, j.event_count
),
listed as (
    insert into holdfast.ended (state, finished_at_ms, seqs, event_counts)
    select state, finished_at_ms, array_agg(seq order by seq), array_agg(event_count order by seq) from changed
     where finished_at_ms is not null
     group by state, finished_at_ms
)
select holdfast.place_1(array(select seq from changed));

-- name: jobs_current
-- Read and lock, in order, only the columns of some jobs that may have changed since they were claimed.
select seq, epoch, state, lease_token, lease_until_ms, priority, phase, percent, cancel_requested, event_count
  from holdfast.job where seq = any (%(seqs)s::bigint[])
 order by seq
/* lock: for update */;

-- name: jobs_succeed
-- Finish running jobs as done if their lease is held, append their events, wake rows if others wait for it and of its gate, and
-- return the columns that may have changed since they were claimed. Only a running job has a lease expiry.
with ended as (
    update holdfast.job j
       set state = 'done', outcome = 'done', result = h.result, event_count = j.event_count + 1,
           finished_at_ms = %(finished_at_ms)s, lease_until_ms = null, suspect = 0, unacknowledged = 0,
           failure_class = null, failure_reason = null, failure_message = null, failure_traceback = null
      from unnest(%(held_0)s::bigint[], %(held_1)s::integer[], %(held_2)s::text[], %(held_3)s::text[])
           as h (seq, epoch, lease_token, result)
     where j.seq = h.seq and j.epoch = h.epoch and j.lease_token = h.lease_token
       and j.lease_until_ms > coalesce(%(lease_now)s::bigint, holdfast.clock_ms())
 returning j.seq, j.id, j.priority, j.phase, j.percent, j.cancel_requested, j.event_count, j.awaited, j.gate,
           j.route, j.tenant, j.tags, j.attempt, j.epoch, j.worker,
           j.dedupe_key is not null or j.session is not null as is_linked
),
events as (
    insert into holdfast.event (name, at_ms, job_ids, number, route, tenant, tags, state, attempt, epoch, worker)
    select 'done', %(finished_at_ms)s::bigint, array_agg(id order by seq), event_count, route, tenant, tags, 'done', attempt,
           epoch, worker
      from ended
     group by event_count, route, tenant, tags, attempt, epoch, worker
     order by min(seq)
),
listed as (
    insert into holdfast.ended (state, finished_at_ms, seqs, event_counts)
    select 'done', %(finished_at_ms)s::bigint, array_agg(seq order by seq), array_agg(event_count order by seq) from ended
    having count(*) > 0
),
closed as (
    delete from holdfast.open_job o where o.seq = any (array(select seq from ended where is_linked))
),
wakes as (
    insert into holdfast.wake (at_ms, target, number)
    select 0, 'parent', seq from ended where awaited = 1
    union all
    select distinct 0, 'gate', gate from ended where gate is not null
)
select seq, priority, phase, percent, cancel_requested, event_count from ended;

-- name: jobs_suspect_of_worker
-- Read some waiting suspect jobs that one start of a worker held last, skipping locked ones.
select j.* from holdfast.open_job o
  join holdfast.job_row j on j.seq = o.seq
 where o.suspect = 1 and o.state in ('ready', 'scheduled', 'blocked', 'dependent', 'parked') and o.worker = %(worker)s
   and o.incarnation = %(incarnation)s
   and j.suspect = 1 and j.state in ('ready', 'scheduled', 'blocked', 'dependent', 'parked')
 limit %(limit)s
/* lock: for update of j skip locked */;

-- name: plain_heartbeat
-- Extend leases that are held and write their progress.
select seq, lease_until_ms, cancel_requested
  from holdfast.heartbeat_1(
    %(lease_clock_ms)s, %(seqs)s, %(epochs)s, %(tokens)s, %(lengths)s, %(acknowledges)s, %(phases)s, %(percents)s
  );

-- name: plain_hold
-- Hold the routing table and return whether the caller's version is the newest; if not, the statements after it do
-- nothing.
select holdfast.plain_hold_1(%(version)s);

-- name: plain_settle
-- Finish jobs as done whose leases are held, and acknowledge claims.
select wall_ms, settled_seqs, priority, phase, percent, cancel_requested, event_count
  from holdfast.settle_1(
    %(clock_ms)s, %(lease_clock_ms)s, %(seqs)s, %(epochs)s, %(tokens)s, %(results)s,
    %(started_seqs)s, %(started_epochs)s, %(started_tokens)s
  );
