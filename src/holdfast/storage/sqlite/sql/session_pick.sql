-- Read the first of some sessions, in their order, that still offers a head. The cross join keeps that order.
select s.* from json_each(:numbers) n
 cross join holdfast_session_row s
 where s.number = n.value and s.head_seq is not null
 limit 1
