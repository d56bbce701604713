-- Intern one route and tell its number.
insert into holdfast_route (lane, kind, requires, placed) values (:lane, :kind, :requires, :placed)
on conflict (lane, kind, requires, placed) do update set lane = excluded.lane
returning route
