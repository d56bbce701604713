-- Read some waiting suspect jobs that one start of a worker held last.
select * from holdfast_job_row
 where suspect = 1 and state in ('ready', 'scheduled', 'blocked') and worker = :worker and incarnation = :incarnation
 limit :limit
