-- Intern one route and tell its number.
insert into holdfast_route (lane, kind, requires, placed, session)
values (:lane, :kind, :requires, :placed, :session)
on conflict (lane, kind, requires, placed, session) do update set lane = excluded.lane
returning route
