-- Count jobs by lane, kind and state, with any filter.
select r.lane, r.kind, j.state, sum(j.jobs)
  from (select route, state, count(*) as jobs from holdfast_job
         where (:states is null or state in (select value from json_each(:states)))
           and (:tenant is null or tenant = :tenant)
           and (:failure_class is null or failure_class = :failure_class)
           and (:aged_before is null or coalesce(finished_at_ms, enqueued_at_ms) < :aged_before)
         group by route, state) j
  join holdfast_route r on r.route = j.route
 where (:kind is null or r.kind = :kind)
   and (:lane is null or r.lane = :lane)
 group by r.lane, r.kind, j.state
