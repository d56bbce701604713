-- Delete the attempts of jobs.
delete from holdfast_attempt where seq in (select value from json_each(:seqs))
