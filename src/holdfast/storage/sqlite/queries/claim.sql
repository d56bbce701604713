-- Claiming: the header that every claim reads first, leases, exclusive workers, fairness positions.

-- name: claim_header
-- Read the routing version, whether any job is due, expired or late, and whether a wake row is due.
select (select value from holdfast_meta where name = 'routing_version'),
       exists (select 1 from holdfast_job where state = {scheduled} and due_at_ms <= :wall_now),
       exists (select 1 from holdfast_job where state = {running} and ends_at_ms <= :lease_now),
       exists (select 1 from holdfast_job
                where deadline_at_ms is not null and rare_state < {running}
                  and deadline_at_ms <= :wall_now),
       exists (select 1 from holdfast_wake where at_ms <= :wall_now);

-- name: claim_lock_token
-- Does nothing: with a single writer, an earlier send of the same claim has already ended.
select 1;

-- name: fair_key_read
-- Read the fair_key served last in a scope.
select fair_key from holdfast_fair_key where scope = :scope;

-- name: fair_key_trim
-- Delete all but the most recently used scopes; a deleted scope starts over.
delete from holdfast_fair_key
 where scope in (select scope from holdfast_fair_key order by used_at_ms desc limit -1 offset :keep);

-- name: fair_key_write
-- Store the fair_key served last in a scope.
insert into holdfast_fair_key (scope, fair_key, used_at_ms) values (:scope, :fair_key, :now)
on conflict (scope) do update set fair_key = excluded.fair_key, used_at_ms = excluded.used_at_ms;

-- name: holder_insert
-- Give a number to one start of a worker, unless it has one, and note that it claims.
insert into holdfast_holder (worker, incarnation, used_at_ms) values (:worker, :incarnation, :started_at_ms)
on conflict (worker, incarnation) do update set used_at_ms = excluded.used_at_ms;

-- name: incarnation_insert
-- Store the newest start of an exclusive worker.
insert into holdfast_incarnation (worker, incarnation, started_at_ms) values (:worker, :incarnation, :now);

-- name: incarnation_read
-- Read whether one start of an exclusive worker is known, and whether a later one has superseded it.
select superseded from holdfast_incarnation where worker = :worker and incarnation = :incarnation;

-- name: incarnation_supersede
-- Mark every start of an exclusive worker as superseded.
update holdfast_incarnation set superseded = 1 where worker = :worker and superseded = 0;

-- name: incarnations_delete
-- Delete all but the newest superseded starts of a worker.
delete from holdfast_incarnation
 where worker = :worker and superseded = 1
   and incarnation not in (select incarnation from holdfast_incarnation
                            where worker = :worker
                            order by started_at_ms desc limit :keep);

-- name: job_claim
-- Write claims of ready jobs: the common values once, and the index of each job in the claim. Without a number for the
-- holder, or if it was not noted as claiming within the hour, nothing is written. The plus before the state keeps the planner from scanning all ready jobs.
update holdfast_job
   set state = {running}, rare_state = case when rare_state is not null then {running} end,
       epoch = epoch + 1, attempt = attempt + 1, claim_index = p.value,
       event_count = event_count + :counted,
       holder = (select holder from holdfast_holder where worker = :worker and incarnation = :incarnation),
       lease_token = :lease_token, lease_until_ms = :lease_until_ms, started_at_ms = :started_at_ms, phase = null,
       percent = null, extra = nullif(json_remove(extra, '$.outcome', '$.settle_digest'), '{}'),
       unacknowledged = case when p.value < :acknowledged then 0 else unacknowledged + 1 end
  from json_each(:indexes) p
 where seq = cast(p.key as integer) and +state = {ready}
   and exists (select 1 from holdfast_holder where worker = :worker and incarnation = :incarnation
                  and used_at_ms > :started_at_ms - 3600000);

-- name: job_claim_one
-- As job_claim, for one job.
update holdfast_job
   set state = {running}, rare_state = case when rare_state is not null then {running} end,
       epoch = epoch + 1, attempt = attempt + 1, claim_index = :value,
       event_count = event_count + :counted,
       holder = (select holder from holdfast_holder where worker = :worker and incarnation = :incarnation),
       lease_token = :lease_token, lease_until_ms = :lease_until_ms, started_at_ms = :started_at_ms, phase = null,
       percent = null, extra = nullif(json_remove(extra, '$.outcome', '$.settle_digest'), '{}'),
       unacknowledged = case when :value < :acknowledged then 0 else unacknowledged + 1 end
 where seq = :key and state = {ready}
   and exists (select 1 from holdfast_holder where worker = :worker and incarnation = :incarnation
                  and used_at_ms > :started_at_ms - 3600000);

-- name: job_claim_next
-- Write the claim of one ready job, by the number of the holder.
update holdfast_job
   set state = {running}, rare_state = case when rare_state is not null then {running} end,
       epoch = epoch + 1, attempt = attempt + 1, claim_index = 0, holder = :holder,
       lease_token = :lease_token, lease_until_ms = :lease_until_ms, started_at_ms = :started_at_ms, phase = null,
       percent = null, extra = nullif(json_remove(extra, '$.outcome', '$.settle_digest'), '{}'),
       unacknowledged = case when :acknowledged > 0 then 0 else unacknowledged + 1 end
 where seq = :seq and state = {ready};

-- name: job_claim_next_plain
-- As job_claim_next, for a job that is in no rare index.
update holdfast_job
   set state = {running}, epoch = epoch + 1, attempt = attempt + 1, claim_index = 0, holder = :holder,
       lease_token = :lease_token, lease_until_ms = :lease_until_ms, started_at_ms = :started_at_ms, phase = null,
       percent = null, extra = nullif(json_remove(extra, '$.outcome', '$.settle_digest'), '{}'),
       unacknowledged = case when :acknowledged > 0 then 0 else unacknowledged + 1 end
 where seq = :seq and state = {ready} and rare_state is null;

-- name: job_claim_range
-- As job_claim_next, for jobs with consecutive numbers in the order of the claim. Without a list, SQLite changes each job
-- as it finds it, which takes a quarter less time.
update holdfast_job
   set state = {running}, rare_state = case when rare_state is not null then {running} end,
       epoch = epoch + 1, attempt = attempt + 1, claim_index = seq - :first, holder = :holder,
       lease_token = :lease_token, lease_until_ms = :lease_until_ms, started_at_ms = :started_at_ms, phase = null,
       percent = null, extra = nullif(json_remove(extra, '$.outcome', '$.settle_digest'), '{}'),
       unacknowledged = case when seq - :first < :acknowledged then 0 else unacknowledged + 1 end
 where seq between :first and :last and +state = {ready};

-- name: job_claim_range_plain
-- As job_claim_range, for jobs that are in no rare index.
update holdfast_job
   set state = {running}, epoch = epoch + 1, attempt = attempt + 1, claim_index = seq - :first, holder = :holder,
       lease_token = :lease_token, lease_until_ms = :lease_until_ms, started_at_ms = :started_at_ms, phase = null,
       percent = null, extra = nullif(json_remove(extra, '$.outcome', '$.settle_digest'), '{}'),
       unacknowledged = case when seq - :first < :acknowledged then 0 else unacknowledged + 1 end
 where seq between :first and :last and +state = {ready} and rare_state is null;

-- name: job_claim_list_plain
-- As job_claim_range_plain, for any numbers, in the order of the claim.
update holdfast_job
   set state = {running}, epoch = epoch + 1, attempt = attempt + 1, claim_index = p.key, holder = :holder,
       lease_token = :lease_token, lease_until_ms = :lease_until_ms, started_at_ms = :started_at_ms, phase = null,
       percent = null, extra = nullif(json_remove(extra, '$.outcome', '$.settle_digest'), '{}'),
       unacknowledged = case when p.key < :acknowledged then 0 else unacknowledged + 1 end
  from json_each(:seqs) p
 where seq = p.value and +state = {ready} and rare_state is null;

-- name: jobs_held
-- Read the running jobs that a worker holds under one token, for a repeated claim.
select * from holdfast_job_row
 where state_number = {running} and ends_at_ms > 0 and lease_token = :lease_token and worker = :worker;

-- name: jobs_held_by_others
-- Read some running jobs that other starts of a worker hold.
select * from holdfast_job_row
 where state_number = {running} and worker = :worker and incarnation <> :incarnation
 limit :limit;
