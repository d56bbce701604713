-- Store a new session, unless it is there already.
insert into holdfast_session (tenant, name) values (:tenant, :name) on conflict (tenant, name) do nothing
