-- Count jobs by state.
select state, count(*) from holdfast.job where (%(tenant)s::text is null or tenant = %(tenant)s::text) group by state
