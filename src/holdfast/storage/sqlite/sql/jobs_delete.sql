-- Delete jobs.
delete from holdfast_job where seq in (select value from json_each(:seqs))
