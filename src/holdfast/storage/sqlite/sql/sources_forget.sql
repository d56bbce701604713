-- Forget some source keys whose batches were deleted before a moment, earliest first.
delete from holdfast_session_source
 where (session, source_key) in (select session, source_key from holdfast_session_source
                                  where deleted_at_ms is not null and deleted_at_ms < :before
                                  order by deleted_at_ms limit :limit)
