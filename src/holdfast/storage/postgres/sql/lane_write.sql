-- Store how a lane is configured.
insert into holdfast.lane (lane, state, lane_order, events, backoff)
values (%(lane)s, %(state)s, %(lane_order)s, %(events)s, %(backoff)s)
on conflict (lane) do update
   set state = excluded.state, lane_order = excluded.lane_order, events = excluded.events,
       backoff = excluded.backoff
