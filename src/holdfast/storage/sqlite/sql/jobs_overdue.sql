-- Read some waiting jobs whose deadline has passed, earliest first.
select * from holdfast_job_row
 where deadline_at_ms is not null and state in ('scheduled', 'blocked', 'ready') and deadline_at_ms <= :now
 order by deadline_at_ms
 limit :limit
