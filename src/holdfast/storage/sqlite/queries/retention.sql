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
-- Delete the log up to one event, except the newest row, whose number must not be used again.
delete from holdfast_event
 where event <= :event and :after_event <= :event and event < (select max(event) from holdfast_event);

-- name: events_head
-- Read the first events after the horizon with their timestamps, to prune a prefix.
select 0, event, at_ms from holdfast_event where event > :event order by event limit :limit;

-- name: bodies_delete
-- Delete the payloads that are stored apart from their jobs.
delete from holdfast_body where seq in (select value from json_each(:seqs));

-- name: jobs_delete
-- Delete jobs, except the one with the highest number, and an earlier one that was kept for that reason.
delete from holdfast_job
 where seq in (select value from json_each(:seqs) union all
               select seq from holdfast_job where ends_at_ms is not null and state = {deleted})
   and seq < (select max(seq) from holdfast_job);

-- name: jobs_delete_highest
-- Empty the row of a deleted job that has the highest number.
update holdfast_job
   set state = {deleted}, rare_state = null, id = char(0) || seq, tenant = '', finished_at_ms = 0, holder = null, lease_token = null,
       deadline_at_ms = null, affinity = null, dedupe_key = null, dedupe_kind = null, predecessor = null,
       session = null, enqueue_seq = null, root = null, suspect = 0, awaited = 0, phase = null, percent = null, extra = null, result = null,
       payload = null
 where seq in (select value from json_each(:seqs));

-- name: jobs_to_prune
-- Find some jobs of one finished state that finished before a time, earliest first, after one of them.
select ends_at_ms, seq from holdfast_job
 where ends_at_ms is not null and state = (select number from holdfast_state where name = :state)
   and ends_at_ms < :before
   and (ends_at_ms, seq) > (:finished_after, :after)
   and not exists (select 1 from holdfast_edge e cross join holdfast_job c on c.seq = e.child
                    where e.parent = holdfast_job.seq and c.state < {done})
   and not exists (select 1 from holdfast_edge e cross join holdfast_group g on g.number = -e.child
                    where e.parent = holdfast_job.seq and e.child < 0
                      and (g.ended_at_ms is null
                           or exists (select 1 from holdfast_edge f cross join holdfast_job c on c.seq = f.child
                                       where f.parent = -g.number and c.state < {done})))
 order by ends_at_ms, seq
 limit :limit;

-- name: holders_delete_unused
-- Delete the holders that have not claimed since a time and are in no job and no event. Reads all jobs and events.
delete from holdfast_holder
 where used_at_ms < :before
   and holder not in (select holder from holdfast_job where holder is not null)
   and holder not in (select holder from holdfast_event where holder is not null);

-- name: holders_old
-- Count the holders that have not claimed since a time, without those that were in use when they were last looked for.
select count(*) - (select cast(value as integer) from holdfast_meta where name = 'holders_kept')
  from holdfast_holder where used_at_ms < :before;

-- name: holders_write_kept
-- Note how many holders that have not claimed since a time are in use.
update holdfast_meta set value = (select count(*) from holdfast_holder where used_at_ms < :before)
 where name = 'holders_kept';
