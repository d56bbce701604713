-- Read sessions by their numbers.
select * from holdfast_session_row where number in (select value from json_each(:numbers)) order by number
