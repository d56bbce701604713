-- Count jobs by lane.
select r.lane, sum(j.jobs)
  from (select route, count(*) as jobs from holdfast_job
         where (:tenant is null or tenant = :tenant) group by route) j
  join holdfast_route r on r.route = j.route
 group by r.lane
