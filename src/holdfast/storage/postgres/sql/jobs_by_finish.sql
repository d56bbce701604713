-- List jobs of one finished state by their end, newest first, with any filter.
select * from holdfast.job_row
 where finished_at_ms is not null and state = %(state)s
   and (finished_at_ms, seq) < (%(finished_before)s, %(before)s)
   and (%(kind)s::text is null or kind = %(kind)s::text)
   and (%(lane)s::text is null or lane = %(lane)s::text)
   and (%(tenant)s::text is null or tenant = %(tenant)s::text)
   and (%(failure_class)s::text is null or failure_class = %(failure_class)s::text)
   and (%(aged_before)s::bigint is null or coalesce(finished_at_ms, enqueued_at_ms) < %(aged_before)s::bigint)
 order by finished_at_ms desc, seq desc
 limit %(limit)s
