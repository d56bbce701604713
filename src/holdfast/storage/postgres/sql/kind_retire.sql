-- Note that a kind takes no more jobs.
insert into holdfast.retired_kind (kind, retired_at_ms) values (%(kind)s, %(now)s) on conflict (kind) do nothing
