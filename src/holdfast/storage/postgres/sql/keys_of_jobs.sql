-- Read the dedupe keys of jobs, by their ids, without locking them.
select tenant, dedupe_kind, dedupe_key from holdfast.job
 where id = any (%(ids)s::text[]) and dedupe_key is not null
