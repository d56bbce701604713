-- Find some jobs of one finished state that ended before a moment, earliest first.
select seq from holdfast_job
 where finished_at_ms is not null and state = :state and finished_at_ms < :before
 order by finished_at_ms, seq
 limit :limit
