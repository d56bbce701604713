-- List jobs of one finished state by their end, newest first, with any filter.
select * from holdfast_job_row
 where finished_at_ms is not null and state = :state
   and (finished_at_ms, seq) < (:finished_before, :before)
   and (:kind is null or kind = :kind)
   and (:lane is null or lane = :lane)
   and (:tenant is null or tenant = :tenant)
   and (:failure_class is null or failure_class = :failure_class)
   and (:aged_before is null or coalesce(finished_at_ms, enqueued_at_ms) < :aged_before)
 order by finished_at_ms desc, seq desc
 limit :limit
