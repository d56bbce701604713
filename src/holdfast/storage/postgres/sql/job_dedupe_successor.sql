-- Read the blocked job that waits to succeed the holder of a dedupe key, locked for what is decided next.
select * from holdfast.job_row
 where tenant = %(tenant)s and dedupe_kind = %(dedupe_kind)s and dedupe_key = %(dedupe_key)s
   and dedupe_key is not null and state = 'blocked'
/* lock: for update */
