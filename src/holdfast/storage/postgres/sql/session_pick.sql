-- Lock the first of some sessions, in their order, that still offers a head and that nobody else has in hand.
select * from holdfast.session_row
 where number = any (%(numbers)s::bigint[]) and coalesce(head_seq, -1) >= 0
 order by array_position(%(numbers)s::bigint[], number)
 limit 1
   for update skip locked
