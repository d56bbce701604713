-- Read the lowest code version that may use this schema.
select value from holdfast.meta where name = 'code_version_min'
