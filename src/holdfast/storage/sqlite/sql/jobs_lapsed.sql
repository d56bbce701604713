-- Read some running jobs whose lease has lapsed, earliest first.
select * from holdfast_job_row
 where state = 'running' and lease_until_ms <= :now
 order by lease_until_ms
 limit :limit
