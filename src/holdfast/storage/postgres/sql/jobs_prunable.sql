-- Find some jobs of one finished state that ended before a moment, earliest first; locked, so that none of them is
-- requeued meanwhile.
select seq from holdfast.job
 where finished_at_ms is not null and state = %(state)s and finished_at_ms < %(before)s
 order by finished_at_ms, seq
 limit %(limit)s
/* lock: for update skip locked */
