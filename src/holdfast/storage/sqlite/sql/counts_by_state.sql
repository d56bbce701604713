-- Count jobs by state.
select state, count(*) from holdfast_job where (:tenant is null or tenant = :tenant) group by state
