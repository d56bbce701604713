-- Read every retired kind.
select kind from holdfast_retired_kind
