-- Read jobs by their numbers, locked for what is decided next.
select * from holdfast_job_row where seq in (select value from json_each(:seqs))
