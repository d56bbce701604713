-- Read some running jobs that other starts of a worker hold.
select * from holdfast_job_row
 where state = 'running' and worker = :worker and incarnation <> :incarnation
 limit :limit
