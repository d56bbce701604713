-- Wait until no other transaction holds any of these keys, and hold them until this one ends.
select holdfast.hold_keys(%(keys)s::integer[])
