-- Wait until no other transaction holds any of these keys: the only writer there can be has done so already.
select 1
