-- Store a new session, unless somebody else has meanwhile.
insert into holdfast.session (tenant, name) values (%(tenant)s, %(name)s) on conflict (tenant, name) do nothing
