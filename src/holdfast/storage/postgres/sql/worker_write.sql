-- Write what one start of a worker says of itself.
insert into holdfast.worker (
    worker, incarnation, host, process, version, state, concurrency, running, lanes, kinds, capabilities, loaded,
    switches, started_at_ms, beat_at_ms
) values (
    %(worker)s, %(incarnation)s, %(host)s, %(process)s, %(version)s, %(state)s, %(concurrency)s, %(running)s, %(lanes)s,
    %(kinds)s, %(capabilities)s, %(loaded)s, %(switches)s, %(now)s, %(now)s
)
on conflict (worker, incarnation) do update
   set state = excluded.state, running = excluded.running, kinds = excluded.kinds, loaded = excluded.loaded,
       switches = excluded.switches, beat_at_ms = excluded.beat_at_ms
