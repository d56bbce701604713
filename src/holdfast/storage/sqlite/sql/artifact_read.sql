-- Read one artifact with its bytes.
select name, data, media_type from holdfast_artifact where seq = :seq and name = :name
