-- Read the workers that said something last, and how many jobs each holds.
select w.worker, w.incarnation, w.host, w.process, w.version, w.state, w.concurrency, w.running, w.lanes, w.kinds,
       w.capabilities, w.loaded, w.switches, w.started_at_ms, w.beat_at_ms,
       (select count(*) from holdfast.job j
         where j.state = 'running' and j.worker = w.worker and j.incarnation = w.incarnation)
  from holdfast.worker w
 order by w.beat_at_ms desc
 limit %(limit)s
