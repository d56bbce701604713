-- List jobs by enqueue order, newest first, with any filter.
select * from holdfast.job_row
 where seq < %(before)s
   and (%(state)s::text is null or state = %(state)s::text)
   and (%(kind)s::text is null or kind = %(kind)s::text)
   and (%(lane)s::text is null or lane = %(lane)s::text)
   and (%(tenant)s::text is null or tenant = %(tenant)s::text)
   and (%(failure_class)s::text is null or failure_class = %(failure_class)s::text)
 order by seq desc
 limit %(limit)s
