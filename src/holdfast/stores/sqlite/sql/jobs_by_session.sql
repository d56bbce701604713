-- List the batches of one session, newest first, with any filter.
select * from holdfast_job_row
 where session_number = (select number from holdfast_session where tenant = :tenant and name = :session)
   and session_number is not null and seq < :before
   and (:state is null or state = :state)
   and (:kind is null or kind = :kind)
   and (:lane is null or lane = :lane)
   and (:failure_class is null or failure_class = :failure_class)
 order by seq desc
 limit :limit
