-- Read jobs by their numbers without a lock, for those who have locked their session already.
select * from holdfast_job_row where seq in (select value from json_each(:seqs))
