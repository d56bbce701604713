-- Read the blocked jobs that wait for any of these to end.
select * from holdfast_job_row
 where state = 'blocked' and predecessor in (select value from json_each(:seqs))
