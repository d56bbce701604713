-- Read one session by its name, locked where something is decided next.
select * from holdfast_session_row where tenant = :tenant and name = :name
