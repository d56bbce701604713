-- Count jobs by lane, kind and state, with any filter.
select r.lane, r.kind, j.state, sum(j.jobs)::bigint
  from (select route, state, count(*) as jobs from holdfast.job
         where (%(states)s::text[] is null or state = any (%(states)s::text[]))
           and (%(tenant)s::text is null or tenant = %(tenant)s::text)
           and (%(failure_class)s::text is null or failure_class = %(failure_class)s::text)
           and (%(aged_before)s::bigint is null
                or coalesce(finished_at_ms, enqueued_at_ms) < %(aged_before)s::bigint)
         group by route, state) j
  join holdfast.route r on r.route = j.route
 where (%(kind)s::text is null or r.kind = %(kind)s::text)
   and (%(lane)s::text is null or r.lane = %(lane)s::text)
 group by r.lane, r.kind, j.state
