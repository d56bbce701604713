-- Intern one route and tell its number.
insert into holdfast.route (lane, kind, requires, placed)
values (%(lane)s, %(kind)s, %(requires)s, %(placed)s)
on conflict (lane, kind, requires, placed) do update set lane = excluded.lane
returning route
