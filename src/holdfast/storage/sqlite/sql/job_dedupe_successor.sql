-- Read the blocked job that waits to succeed the holder of a dedupe key.
select * from holdfast_job_row
 where tenant = :tenant and dedupe_kind = :dedupe_kind and dedupe_key = :dedupe_key
   and dedupe_key is not null and state = 'blocked'
