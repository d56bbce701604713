-- Read jobs by their ids.
select * from holdfast_job_row where id in (select value from json_each(:ids))
