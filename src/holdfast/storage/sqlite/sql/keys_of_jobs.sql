-- Read the dedupe keys of jobs, by their ids.
select tenant, dedupe_kind, dedupe_key from holdfast_job
 where id in (select value from json_each(:ids)) and dedupe_key is not null
