-- Intern one route and tell its number.
insert into holdfast.route (lane, kind, requires, placed, session)
values (%(lane)s, %(kind)s, %(requires)s, %(placed)s, %(session)s)
on conflict (lane, kind, requires, placed, session) do update set lane = excluded.lane
returning route
