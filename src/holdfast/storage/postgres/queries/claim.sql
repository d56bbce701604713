-- Claiming: the header that every claim reads first, leases, exclusive workers, fairness positions.

-- name: claim_header
-- Read the routing version, whether any job is due, expired or late after the times up to which none was, and whether a
-- wake row is due; now, unless times are given.
select (select holdfast.routing_version(false /* lock: or true */)),
       exists (select 1 from holdfast.open_job
                where state = 'scheduled' and due_at_ms > %(wall_low)s and due_at_ms <= clock.wall_now),
       exists (select 1 from holdfast.lease where until_ms > %(lease_low)s and until_ms <= clock.lease_now)
           and holdfast.has_expired_1(%(lease_low)s, clock.lease_now, false /* lock: or true */),
       exists (select 1 from holdfast.open_job
                where deadline_at_ms is not null and state in ('scheduled', 'blocked', 'dependent', 'parked', 'ready')
                  and deadline_at_ms > %(wall_low)s and deadline_at_ms <= clock.wall_now),
       exists (select 1 from holdfast.wake where at_ms <= clock.wall_now)
  from (select coalesce(%(wall_now)s, holdfast.clock_ms()) as wall_now,
               coalesce(%(lease_now)s, holdfast.clock_ms()) as lease_now) clock;

-- name: claim_lock_token
-- Wait until an earlier send of the same claim that is still in flight has ended.
select pg_advisory_xact_lock('holdfast.job'::regclass::oid::integer,
                             hashtext(concat_ws(chr(10), %(worker)s::text, %(token)s::text)));

-- name: fair_key_read
-- Read the fair_key served last in a scope.
select fair_key from holdfast.fair_key where scope = %(scope)s;

-- name: fair_key_trim
-- Delete all but the most recently used scopes; a deleted scope starts over.
delete from holdfast.fair_key
 where scope in (select scope from holdfast.fair_key
                  order by used_at_ms desc offset %(keep)s
                    for update skip locked);

-- name: fair_key_write
-- Store the fair_key served last in a scope. It is only a hint: if another transaction is writing it, skip the write.
with free as (
    select scope from holdfast.fair_key where scope = %(scope)s for update skip locked
),
moved as (
    update holdfast.fair_key t set fair_key = %(fair_key)s, used_at_ms = %(now)s from free where t.scope = free.scope
)
insert into holdfast.fair_key (scope, fair_key, used_at_ms)
select %(scope)s, %(fair_key)s, %(now)s
 where not exists (select 1 from holdfast.fair_key where scope = %(scope)s)
on conflict (scope) do nothing;

-- name: incarnation_insert
-- Store the newest start of an exclusive worker; of two concurrent ones the second fails and is run again.
insert into holdfast.incarnation (worker, incarnation, started_at_ms)
values (%(worker)s, %(incarnation)s, %(now)s);

-- name: incarnation_read
-- Read whether one start of an exclusive worker is known, and whether a later one has superseded it. The lock makes a
-- later start wait until the claims of this one are visible and can be revoked.
select superseded from holdfast.incarnation
 where worker = %(worker)s and incarnation = %(incarnation)s
/* lock: for share */;

-- name: incarnation_supersede
-- Mark every start of an exclusive worker as superseded.
update holdfast.incarnation set superseded = 1 where worker = %(worker)s and superseded = 0;

-- name: incarnations_delete
-- Delete all but the newest superseded starts of a worker.
delete from holdfast.incarnation
 where worker = %(worker)s and superseded = 1
   and incarnation not in (select incarnation from holdfast.incarnation
                            where worker = %(worker)s
                            order by started_at_ms desc limit %(keep)s);

-- name: job_claim
-- Write claims of ready jobs: the common values once, and the index of each job in the claim.
with taken as materialized (
    select holdfast.take_1(%(worker)s, %(lease_token)s, %(lease_until_ms)s, %(indexes_0)s::bigint[])
)
update holdfast.job j
   set state = 'running', epoch = j.epoch + 1, attempt = j.attempt + 1, claim_index = p.claim_index,
       event_count = j.event_count + %(counted)s::integer, worker = %(worker)s, incarnation = %(incarnation)s,
       lease_token = %(lease_token)s, lease_until_ms = %(lease_until_ms)s, started_at_ms = %(started_at_ms)s,
       outcome = null, settle_digest = null, phase = null, percent = null,
       unacknowledged = case when p.claim_index < %(acknowledged)s::integer then 0 else j.unacknowledged + 1 end
  from taken, unnest(%(indexes_0)s::bigint[], %(indexes_1)s::integer[]) as p (seq, claim_index)
 where j.seq = p.seq and j.state = 'ready';

-- name: jobs_held
-- Read the running jobs that a worker holds under one token, for a repeated claim.
select * from holdfast.job_row
 where seq = any (array(select unnest(l.seqs) from holdfast.lease l
                         where l.token = %(lease_token)s and l.worker = %(worker)s))
   and state = 'running' and worker = %(worker)s and lease_token = %(lease_token)s;

-- name: jobs_held_by_others
-- Read and lock, in order, some running jobs that other starts of a worker hold, to revoke them.
select * from holdfast.job_row
 where seq = any (array(select unnest(l.seqs) from holdfast.lease l where l.worker = %(worker)s))
   and state = 'running' and worker = %(worker)s and incarnation <> %(incarnation)s
 order by seq
 limit %(limit)s
/* lock: for update */;

-- name: plain_claim
-- Claim ready jobs in claim order; the last row says what the claim has seen, and whether the full form has to do it.
select /* claimed columns */
  from holdfast.claim_1(
    %(clock_ms)s, %(lease_clock_ms)s, %(routes)s, %(limit)s, %(worker)s, %(incarnation)s, %(lease_token)s, %(lease_ms)s,
    %(acknowledged)s, %(scope)s, %(position_priorities)s, %(position_fair_keys)s, %(position_dues)s, %(position_seqs)s,
    %(floor_seq)s, %(floor_due)s, %(floor_backdated)s, %(wall_floor)s, %(lease_floor)s
  ) j;

-- name: plain_claim_gated
-- As plain_claim, for jobs with limits. If one of a later level has no room, the transaction fails.
select /* claimed columns */
  from holdfast.claim_1(
    %(clock_ms)s, %(lease_clock_ms)s, %(routes)s, %(limit)s, %(worker)s, %(incarnation)s, %(lease_token)s, %(lease_ms)s,
    %(acknowledged)s, %(scope)s, %(position_priorities)s, %(position_fair_keys)s, %(position_dues)s, %(position_seqs)s,
    %(floor_seq)s, %(floor_due)s, %(floor_backdated)s, %(wall_floor)s, %(lease_floor)s,
    %(limit_routes)s, %(limit_numbers)s, %(key_sources)s, %(concurrencies)s, %(start_costs_us)s, %(burst_costs_us)s
  ) j;

-- name: plain_claim_gated_undoing
-- As plain_claim_gated, but the claim is undone instead, by a savepoint.
select /* claimed columns */
  from holdfast.claim_gated_1(
    %(clock_ms)s, %(lease_clock_ms)s, %(routes)s, %(limit)s, %(worker)s, %(incarnation)s, %(lease_token)s, %(lease_ms)s,
    %(acknowledged)s, %(scope)s, %(position_priorities)s, %(position_fair_keys)s, %(position_dues)s, %(position_seqs)s,
    %(floor_seq)s, %(floor_due)s, %(floor_backdated)s, %(wall_floor)s, %(lease_floor)s,
    %(limit_routes)s, %(limit_numbers)s, %(key_sources)s, %(concurrencies)s, %(start_costs_us)s, %(burst_costs_us)s
  ) j;

-- name: plain_guard
-- Check that a claim can be plain.
select refused, wall_ms, lease_ms, oldest_open, backdated, last_seq
  from holdfast.plain_guard_1(
    %(version)s, %(clock_ms)s, %(lease_clock_ms)s, %(wall_low)s, %(lease_low)s, %(worker)s, %(chosen_token)s,
    %(examines)s
  );
