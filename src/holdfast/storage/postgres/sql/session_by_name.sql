-- Read one session by its name, locked where something is decided next.
select * from holdfast.session_row where tenant = %(tenant)s and name = %(name)s /* lock: for update */
