-- List jobs by enqueue order, newest first, with any filter.
select * from holdfast_job_row
 where seq < :before
   and (:states is null or state in (select value from json_each(:states)))
   and (:kind is null or kind = :kind)
   and (:lane is null or lane = :lane)
   and (:tenant is null or tenant = :tenant)
   and (:failure_class is null or failure_class = :failure_class)
   and (:aged_before is null or coalesce(finished_at_ms, enqueued_at_ms) < :aged_before)
 order by seq desc
 limit :limit
