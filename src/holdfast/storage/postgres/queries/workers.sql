-- The registry of workers.

-- name: worker_delete
-- Delete the row of a start of a worker that has shut down properly.
delete from holdfast.worker where worker = %(worker)s and incarnation = %(incarnation)s;

-- name: worker_request
-- Request every start of a worker to drain or to stop; a request to stop remains.
update holdfast.worker set requested = case requested when 'stop' then 'stop' else %(requested)s end where worker = %(worker)s;

-- name: worker_write
-- Store the self-reported status of one start of a worker, and read what was requested of it.
insert into holdfast.worker (
    worker, incarnation, host, process, version, state, concurrency, running, lanes, kinds, capabilities, loaded,
    switches, switches_saved, hold_left_ms, forms, started_at_ms, beat_at_ms
) values (
    %(worker)s, %(incarnation)s, %(host)s, %(process)s, %(version)s, %(state)s, %(concurrency)s, %(running)s, %(lanes)s,
    %(kinds)s, %(capabilities)s, %(loaded)s, %(switches)s, %(switches_saved)s, %(hold_left_ms)s, %(forms)s,
    %(now)s, %(now)s
)
on conflict (worker, incarnation) do update
   set state = excluded.state, running = excluded.running, kinds = excluded.kinds, loaded = excluded.loaded,
       switches = excluded.switches, switches_saved = excluded.switches_saved,
       hold_left_ms = excluded.hold_left_ms, forms = excluded.forms, beat_at_ms = excluded.beat_at_ms
returning requested;

-- name: workers_delete
-- Delete a chunk of the rows of workers that stopped reporting long ago, skipping rows that another worker deletes.
delete from holdfast.worker
 where (worker, incarnation) in (select worker, incarnation from holdfast.worker
                                  where beat_at_ms < %(before)s
                                  order by beat_at_ms
                                  limit %(limit)s
                                    for update skip locked);

-- name: workers_forms
-- Read how often calls took their plain form, of the workers that have reported since a time, newest report first.
select host, process, forms from holdfast.worker where beat_at_ms >= %(since)s order by beat_at_ms desc limit %(limit)s;

-- name: workers_newest
-- Read the workers that reported last, and how many jobs each holds.
select w.worker, w.incarnation, w.host, w.process, w.version, w.state, w.concurrency, w.running, w.lanes, w.kinds,
       w.capabilities, w.loaded, w.switches, w.switches_saved, w.hold_left_ms, w.requested, w.started_at_ms, w.beat_at_ms,
       (select count(*) from holdfast.lease l
         cross join lateral unnest(l.seqs) as u (seq)
          join holdfast.job j on j.seq = u.seq
         where l.worker = w.worker and j.state = 'running' and j.worker = w.worker and j.incarnation = w.incarnation
           and j.lease_token = l.token)
  from holdfast.worker w
 order by w.beat_at_ms desc
 limit %(limit)s;

-- name: workers_of_name
-- Read every start of a worker, and how many jobs each holds.
select w.worker, w.incarnation, w.host, w.process, w.version, w.state, w.concurrency, w.running, w.lanes, w.kinds,
       w.capabilities, w.loaded, w.switches, w.switches_saved, w.hold_left_ms, w.requested, w.started_at_ms, w.beat_at_ms,
       (select count(*) from holdfast.lease l
         cross join lateral unnest(l.seqs) as u (seq)
          join holdfast.job j on j.seq = u.seq
         where l.worker = w.worker and j.state = 'running' and j.worker = w.worker and j.incarnation = w.incarnation
           and j.lease_token = l.token)
  from holdfast.worker w
 where w.worker = %(worker)s;
