-- Read every retired kind.
select kind from holdfast.retired_kind
