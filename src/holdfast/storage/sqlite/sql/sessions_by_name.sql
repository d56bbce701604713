-- Read sessions by their names.
select s.* from json_each(:names) n
  join holdfast_session_row s on s.tenant = json_extract(n.value, '$[0]') and s.name = json_extract(n.value, '$[1]')
