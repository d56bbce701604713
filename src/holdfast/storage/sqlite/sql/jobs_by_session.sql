-- List the batches of one session, newest first, with any filter.
select * from holdfast_job_row
 where session_number = (select number from holdfast_session where tenant = :tenant and name = :session)
   and session_number is not null and seq < :before
   and (:states is null or state in (select value from json_each(:states)))
   and (:kind is null or kind = :kind)
   and (:lane is null or lane = :lane)
   and (:failure_class is null or failure_class = :failure_class)
   and (:aged_before is null or coalesce(finished_at_ms, enqueued_at_ms) < :aged_before)
 order by seq desc
 limit :limit
