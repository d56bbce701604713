-- Read what artifacts a job has, by name.
select name, media_type, size, epoch, created_at_ms from holdfast_artifact where seq = :seq order by name
