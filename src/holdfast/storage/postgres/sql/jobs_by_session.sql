-- List the batches of one session, newest first, with any filter.
select * from holdfast.job_row
 where session_number = (select number from holdfast.session where tenant = %(tenant)s and name = %(session)s)
   and session_number is not null and seq < %(before)s
   and (%(states)s::text[] is null or state = any (%(states)s::text[]))
   and (%(kind)s::text is null or kind = %(kind)s::text)
   and (%(lane)s::text is null or lane = %(lane)s::text)
   and (%(failure_class)s::text is null or failure_class = %(failure_class)s::text)
   and (%(aged_before)s::bigint is null or coalesce(finished_at_ms, enqueued_at_ms) < %(aged_before)s::bigint)
 order by seq desc
 limit %(limit)s
