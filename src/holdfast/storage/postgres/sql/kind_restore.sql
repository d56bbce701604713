-- Let a retired kind take jobs again.
delete from holdfast.retired_kind where kind = %(kind)s returning kind
