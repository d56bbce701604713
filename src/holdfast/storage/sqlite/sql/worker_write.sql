-- Write what one start of a worker says of itself.
insert into holdfast_worker (
    worker, incarnation, host, process, version, state, concurrency, running, lanes, kinds, capabilities, loaded,
    switches, started_at_ms, beat_at_ms
) values (
    :worker, :incarnation, :host, :process, :version, :state, :concurrency, :running, :lanes, :kinds, :capabilities,
    :loaded, :switches, :now, :now
)
on conflict (worker, incarnation) do update
   set state = excluded.state, running = excluded.running, kinds = excluded.kinds, loaded = excluded.loaded,
       switches = excluded.switches, beat_at_ms = excluded.beat_at_ms
