-- Tell which of some sessions nobody else has in hand, and lock them in order; whoever tidies up waits for no one.
select number from holdfast.session where number = any (%(numbers)s::bigint[]) order by number for update skip locked
