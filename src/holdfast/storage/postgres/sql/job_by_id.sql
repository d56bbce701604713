-- Read one job by its id, locked where something is decided next.
select * from holdfast.job_row where id = %(id)s /* lock: for update */
