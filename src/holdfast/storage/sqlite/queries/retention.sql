-- Deleting old finished jobs and events.

-- name: artifacts_delete
-- Delete the artifacts of jobs.
delete from holdfast_artifact where seq in (select value from json_each(:seqs));

-- name: attempts_delete
-- Delete the attempts of jobs.
delete from holdfast_attempt where seq in (select value from json_each(:seqs));

-- name: event_horizon_write
-- Store the event up to which the log has been pruned.
update holdfast_meta set value = cast(:event as text) where name = 'event_horizon';

-- name: events_delete
-- Delete the log after the horizon up to one event.
delete from holdfast_event where event > :after_event and event <= :event;

-- name: events_head
-- Read the first events after the horizon with their timestamps, to prune a prefix.
select 0, event, at_ms from holdfast_event where event > :event order by event limit :limit;

-- name: jobs_delete
-- Delete jobs.
delete from holdfast_job where seq in (select value from json_each(:seqs));

-- name: jobs_to_prune
-- Find some jobs of one finished state that finished before a time, earliest first, after one of them.
select finished_at_ms, seq from holdfast_job
 where finished_at_ms is not null and state = :state and finished_at_ms < :before
   and (finished_at_ms, seq) > (:finished_after, :after)
 order by finished_at_ms, seq
 limit :limit;
