-- Let a retired kind take jobs again.
delete from holdfast_retired_kind where kind = :kind returning kind
