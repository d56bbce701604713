-- Store how a lane is configured.
insert into holdfast_lane (lane, state, lane_order, events, backoff)
values (:lane, :state, :lane_order, :events, :backoff)
on conflict (lane) do update
   set state = excluded.state, lane_order = excluded.lane_order, events = excluded.events,
       backoff = excluded.backoff
