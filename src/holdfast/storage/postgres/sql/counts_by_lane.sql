-- Count jobs by lane.
select r.lane, sum(j.jobs)::bigint
  from (select route, count(*) as jobs from holdfast.job
         where (%(tenant)s::text is null or tenant = %(tenant)s::text) group by route) j
  join holdfast.route r on r.route = j.route
 group by r.lane
