-- The registry of workers.

-- name: worker_delete
-- Delete the row of a start of a worker that has shut down properly.
delete from holdfast_worker where worker = :worker and incarnation = :incarnation;

-- name: worker_request
-- Request every start of a worker to drain or to stop; a request to stop remains.
update holdfast_worker set requested = case requested when 'stop' then 'stop' else :requested end where worker = :worker;

-- name: worker_write
-- Store the self-reported status of one start of a worker, and read what was requested of it.
insert into holdfast_worker (
    worker, incarnation, host, process, version, state, concurrency, running, lanes, kinds, capabilities, loaded,
    switches, switches_saved, hold_left_ms, forms, started_at_ms, beat_at_ms
) values (
    :worker, :incarnation, :host, :process, :version, :state, :concurrency, :running, :lanes, :kinds, :capabilities,
    :loaded, :switches, :switches_saved, :hold_left_ms, :forms,
    :now, :now
)
on conflict (worker, incarnation) do update
   set state = excluded.state, running = excluded.running, kinds = excluded.kinds, loaded = excluded.loaded,
       switches = excluded.switches, switches_saved = excluded.switches_saved,
       hold_left_ms = excluded.hold_left_ms, forms = excluded.forms, beat_at_ms = excluded.beat_at_ms
returning requested;

-- name: workers_delete
-- Delete a chunk of the rows of workers that stopped reporting long ago, oldest first.
delete from holdfast_worker
 where (worker, incarnation) in (select worker, incarnation from holdfast_worker
                                  where beat_at_ms < :before order by beat_at_ms limit :limit);

-- name: workers_forms
-- Read how often calls took their plain form, of the workers that have reported since a time, newest report first.
select host, process, forms from holdfast_worker where beat_at_ms >= :since order by beat_at_ms desc limit :limit;

-- name: workers_newest
-- Read the workers that reported last, and how many jobs each holds.
select w.worker, w.incarnation, w.host, w.process, w.version, w.state, w.concurrency, w.running, w.lanes, w.kinds,
       w.capabilities, w.loaded, w.switches, w.switches_saved, w.hold_left_ms, w.requested, w.started_at_ms, w.beat_at_ms,
       (select count(*) from holdfast_job j
         where j.state = {running} and j.ends_at_ms > 0 and j.holder = h.holder)
  from holdfast_worker w
  left join holdfast_holder h on h.worker = w.worker and h.incarnation = w.incarnation
 order by w.beat_at_ms desc
 limit :limit;

-- name: workers_of_name
-- Read every start of a worker, and how many jobs each holds.
select w.worker, w.incarnation, w.host, w.process, w.version, w.state, w.concurrency, w.running, w.lanes, w.kinds,
       w.capabilities, w.loaded, w.switches, w.switches_saved, w.hold_left_ms, w.requested, w.started_at_ms, w.beat_at_ms,
       (select count(*) from holdfast_job j
         where j.state = {running} and j.ends_at_ms > 0 and j.holder = h.holder)
  from holdfast_worker w
  left join holdfast_holder h on h.worker = w.worker and h.incarnation = w.incarnation
 where w.worker = :worker;
