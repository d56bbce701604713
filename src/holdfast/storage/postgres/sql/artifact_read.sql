-- Read one artifact with its bytes.
select name, data, media_type from holdfast.artifact where seq = %(seq)s and name = %(name)s
