-- Read some running jobs of one start of a worker whose lease has lapsed.
select * from holdfast_job_row
 where state = 'running' and worker = :worker and incarnation = :incarnation and lease_until_ms <= :now
 limit :limit
