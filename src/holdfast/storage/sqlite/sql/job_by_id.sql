-- Read one job by its id.
select * from holdfast_job_row where id = :id
