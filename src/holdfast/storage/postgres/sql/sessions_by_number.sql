-- Read sessions by their numbers, locked in order for what is decided next.
select * from holdfast.session_row where number = any (%(numbers)s::bigint[]) order by number /* lock: for update */
