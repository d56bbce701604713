-- Read jobs by their ids, locked in order for what is decided next.
select * from holdfast.job_row where id = any (%(ids)s::text[]) order by seq /* lock: for update */
