-- List jobs by enqueue order, newest first, with any filter.
select * from holdfast.job_row
 where seq < %(before)s
   and (%(states)s::text[] is null or state = any (%(states)s::text[]))
   and (%(kind)s::text is null or kind = %(kind)s::text)
   and (%(lane)s::text is null or lane = %(lane)s::text)
   and (%(tenant)s::text is null or tenant = %(tenant)s::text)
   and (%(failure_class)s::text is null or failure_class = %(failure_class)s::text)
   and (%(aged_before)s::bigint is null or coalesce(finished_at_ms, enqueued_at_ms) < %(aged_before)s::bigint)
 order by seq desc
 limit %(limit)s
