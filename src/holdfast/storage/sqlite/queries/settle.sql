-- Settling: leases, progress, and the writes of transitions.

-- name: job_acknowledge
-- Acknowledge claims that are still held, one for each row of values.
update holdfast_job set unacknowledged = 0
 where seq = ? and epoch = ? and lease_token = ? and state = {running} and lease_until_ms > ?;

-- name: job_clear_suspicion
-- Clear the suspicion of jobs, one for each row of values, only if each still has the epoch the decision is based on.
update holdfast_job set suspect = ?, extra = ? where seq = ? and epoch = ?;

-- name: job_digest
-- Write the digests by which repeated settlements are recognized, if the result alone is not sufficient.
update holdfast_job
   set extra = json_set(coalesce(extra, '{}'), '$.settle_digest', d.value)
  from json_each(:digests) d
 where seq = cast(d.key as integer);

-- name: job_done
-- Finish running jobs as done: the common values once, and the result of each job.
-- The plus before the state keeps the planner from scanning all running jobs.
update holdfast_job
   set state = {done}, rare_state = case when rare_state is not null then {done} end,
       result = r.value, event_count = event_count + :counted, finished_at_ms = :finished_at_ms, lease_until_ms = null,
       suspect = 0, unacknowledged = 0,
       extra = nullif(json_remove(extra, '$.outcome', '$.failure_class', '$.failure_reason', '$.failure_message',
                                  '$.failure_traceback'), '{}')
  from json_each(:results) r
 where seq = cast(r.key as integer) and +state = {running};

-- name: job_done_one
-- As job_done, for one job.
update holdfast_job
   set state = {done}, rare_state = case when rare_state is not null then {done} end,
       result = :value, event_count = event_count + :counted, finished_at_ms = :finished_at_ms, lease_until_ms = null,
       suspect = 0, unacknowledged = 0,
       extra = nullif(json_remove(extra, '$.outcome', '$.failure_class', '$.failure_reason', '$.failure_message',
                                  '$.failure_traceback'), '{}')
 where seq = :key and state = {running};

-- name: job_done_each
-- As job_done_held, for jobs of one claim that have the same epoch and have not changed since, nor concern others.
update holdfast_job
   set state = {done}, rare_state = case when rare_state is not null then {done} end,
       result = r.value, event_count = event_count + 1, finished_at_ms = :now, lease_until_ms = null,
       suspect = 0, unacknowledged = 0,
       extra = nullif(json_remove(extra, '$.outcome', '$.failure_class', '$.failure_reason', '$.failure_message',
                                  '$.failure_traceback'), '{}')
  from json_each(:results) r
 where seq = cast(r.key as integer) and +state = {running} and epoch = :epoch and lease_token = :token
   and lease_until_ms > :lease_now and priority = :priority and event_count = :event_count and phase is null
   and percent is null and cancel_requested = 0 and awaited = 0 and (gate is null or :gated) and dedupe_key is null and session is null;

-- name: job_done_held
-- Finish running jobs as done if their lease is held: for each its epoch, lease token and result. Return what may have
-- changed since they were claimed.
update holdfast_job
   set state = {done}, rare_state = case when rare_state is not null then {done} end,
       result = h.value ->> 3, event_count = event_count + 1, finished_at_ms = :now, lease_until_ms = null,
       suspect = 0, unacknowledged = 0,
       extra = nullif(json_remove(extra, '$.outcome', '$.failure_class', '$.failure_reason', '$.failure_message',
                                  '$.failure_traceback'), '{}')
  from json_each(:held) h
 where seq = h.value ->> 0 and +state = {running} and epoch = h.value ->> 1 and lease_token = h.value ->> 2
   and lease_until_ms > :lease_now
returning seq, priority, phase, percent, cancel_requested, event_count,
          dedupe_key is not null or session is not null, awaited, gate;

-- name: job_done_held_one
-- As job_done_held, for one job.
update holdfast_job
   set state = {done}, rare_state = case when rare_state is not null then {done} end,
       result = :result, event_count = event_count + 1, finished_at_ms = :now, lease_until_ms = null,
       suspect = 0, unacknowledged = 0,
       extra = nullif(json_remove(extra, '$.outcome', '$.failure_class', '$.failure_reason', '$.failure_message',
                                  '$.failure_traceback'), '{}')
 where seq = :seq and state = {running} and epoch = :epoch and lease_token = :token and lease_until_ms > :lease_now
returning seq, priority, phase, percent, cancel_requested, event_count,
          dedupe_key is not null or session is not null, awaited, gate;

-- name: job_done_plain
-- As job_done_unchanged, for a job that is in no rare index and whose only event is this one.
update holdfast_job
   set state = {done}, result = :result, event_count = 1, finished_at_ms = :now, lease_until_ms = null,
       unacknowledged = 0
 where seq = :seq and state = {running} and epoch = :epoch and lease_token = :token and lease_until_ms > :lease_now
   and priority = :priority and event_count = 0 and phase is null and percent is null
   and cancel_requested = 0 and awaited = 0 and rare_state is null and extra is null;

-- name: job_done_range_plain
-- As job_done_plain, for jobs of one claim with consecutive numbers and the same result.
update holdfast_job
   set state = {done}, result = :result, event_count = 1, finished_at_ms = :now, lease_until_ms = null,
       unacknowledged = 0
 where seq between :first and :last and +state = {running} and epoch = :epoch and lease_token = :token
   and lease_until_ms > :lease_now and priority = :priority and event_count = 0 and phase is null and percent is null
   and cancel_requested = 0 and awaited = 0 and rare_state is null and extra is null;

-- name: job_done_list_plain
-- As job_done_range_plain, for any numbers.
update holdfast_job
   set state = {done}, result = :result, event_count = 1, finished_at_ms = :now, lease_until_ms = null,
       unacknowledged = 0
 where seq in (select value from json_each(:seqs)) and +state = {running} and epoch = :epoch and lease_token = :token
   and lease_until_ms > :lease_now and priority = :priority and event_count = 0 and phase is null and percent is null
   and cancel_requested = 0 and awaited = 0 and rare_state is null and extra is null;

-- name: job_done_same
-- As job_done_each, with the same result for all.
update holdfast_job
   set state = {done}, rare_state = case when rare_state is not null then {done} end,
       result = :result, event_count = event_count + 1, finished_at_ms = :now, lease_until_ms = null,
       suspect = 0, unacknowledged = 0,
       extra = nullif(json_remove(extra, '$.outcome', '$.failure_class', '$.failure_reason', '$.failure_message',
                                  '$.failure_traceback'), '{}')
 where seq in (select value from json_each(:seqs)) and +state = {running} and epoch = :epoch and lease_token = :token
   and lease_until_ms > :lease_now and priority = :priority and event_count = :event_count and phase is null
   and percent is null and cancel_requested = 0 and awaited = 0 and (gate is null or :gated) and dedupe_key is null and session is null;

-- name: job_done_unchanged
-- As job_done_same, for one job.
update holdfast_job
   set state = {done}, rare_state = case when rare_state is not null then {done} end,
       result = :result, event_count = event_count + 1, finished_at_ms = :now, lease_until_ms = null,
       suspect = 0, unacknowledged = 0,
       extra = nullif(json_remove(extra, '$.outcome', '$.failure_class', '$.failure_reason', '$.failure_message',
                                  '$.failure_traceback'), '{}')
 where seq = :seq and state = {running} and epoch = :epoch and lease_token = :token and lease_until_ms > :lease_now
   and priority = :priority and event_count = :event_count and phase is null and percent is null
   and cancel_requested = 0 and awaited = 0 and (gate is null or :gated) and dedupe_key is null and session is null;

-- name: job_lease
-- Extend leases and write whether they are acknowledged, one for each row of values, only if each job still has the
-- epoch of its claim.
update holdfast_job set lease_until_ms = ?, unacknowledged = ? where seq = ? and epoch = ?;

-- name: job_progress
-- Write the progress of a running job.
update holdfast_job set phase = :phase, percent = :percent where seq = :seq and epoch = :epoch;

-- name: job_transition
-- Write the changes of transitions, one job for each row of values, only if it still has the epoch that the decision
-- is based on.
update holdfast_job
   set state = ?1, fair_key = ?2, due_at_ms = ?3, deadline_at_ms = ?4, finished_at_ms = ?5, attempt = ?6,
       lease_until_ms = ?7, phase = ?8, percent = ?9, cancel_requested = ?10, suspect = ?11, predecessor = ?12,
       event_count = ?13, result = ?14, unacknowledged = ?15, extra = ?16,
       rare_state = case when coalesce(rare_state, ?4, nullif(?11, 0), nullif(?2 = '', 0)) is not null then ?1 end
 where seq = ?17 and epoch = ?18;

-- name: jobs_current
-- Read only the columns of some jobs that may have changed since they were claimed.
select seq, epoch, (select name from holdfast_state where number = state), lease_token, lease_until_ms, priority, phase, percent, cancel_requested, event_count
  from holdfast_job where seq in (select value from json_each(:seqs));

-- name: jobs_current_one
-- As jobs_current, for one job.
select seq, epoch, (select name from holdfast_state where number = state), lease_token, lease_until_ms, priority, phase, percent, cancel_requested, event_count
  from holdfast_job where seq = :value;

-- name: jobs_suspect_of_worker
-- Read some waiting suspect jobs that one start of a worker held last.
select * from holdfast_job_row
 where suspect = 1 and rare_state < {running} and worker = :worker and incarnation = :incarnation
 limit :limit;
