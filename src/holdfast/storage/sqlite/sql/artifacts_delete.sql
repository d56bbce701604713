-- Delete the artifacts of jobs.
delete from holdfast_artifact where seq in (select value from json_each(:seqs))
