-- Note that a kind takes no more jobs.
insert into holdfast_retired_kind (kind, retired_at_ms) values (:kind, :now) on conflict (kind) do nothing
