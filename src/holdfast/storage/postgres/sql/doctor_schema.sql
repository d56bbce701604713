-- Tell the newest migration applied.
select max(name) from holdfast.migration
