-- Count jobs by tenant.
select tenant, count(*) from holdfast.job
 where (%(tenant)s::text is null or tenant = %(tenant)s::text) group by tenant
