-- Read the jobs that others meet by a dedupe key they hold, by id or by number.
select * from holdfast_job_row
 where seq in (
    select json_extract(value, '$[4]') from json_each(:met)
     union all
    select j.seq from json_each(:met) m
      join holdfast_job j on j.id = json_extract(m.value, '$[3]')
     union all
    select j.seq from json_each(:met) m
      join holdfast_job j on j.tenant = json_extract(m.value, '$[0]')
       and j.dedupe_kind = json_extract(m.value, '$[1]') and j.dedupe_key = json_extract(m.value, '$[2]')
       and j.dedupe_key is not null and j.state in ('scheduled', 'ready', 'running')
 )
