-- List jobs by enqueue order, newest first, with any filter.
select * from holdfast_job_row
 where seq < :before
   and (:state is null or state = :state)
   and (:kind is null or kind = :kind)
   and (:lane is null or lane = :lane)
   and (:tenant is null or tenant = :tenant)
   and (:failure_class is null or failure_class = :failure_class)
 order by seq desc
 limit :limit
