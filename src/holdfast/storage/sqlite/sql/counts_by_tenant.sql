-- Count jobs by tenant.
select tenant, count(*) from holdfast_job where (:tenant is null or tenant = :tenant) group by tenant
