-- Read the chosen batches of a session that are still ready.
select * from holdfast_job_row where seq in (select value from json_each(:seqs)) and +state = 'ready'
