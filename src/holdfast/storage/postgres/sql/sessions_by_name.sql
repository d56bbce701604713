-- Read sessions by their names, locked in order of their numbers for what is decided next.
select * from holdfast.session_row
 where (tenant, name) in (select * from unnest(%(names_0)s::text[], %(names_1)s::text[]))
 order by number
/* lock: for update */
