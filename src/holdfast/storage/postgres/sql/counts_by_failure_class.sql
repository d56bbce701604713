-- Count failed jobs by the class of their failure.
select failure_class, count(*) from holdfast.job
 where finished_at_ms is not null and state = 'failed' and failure_class is not null
   and (%(tenant)s::text is null or tenant = %(tenant)s::text)
 group by failure_class
